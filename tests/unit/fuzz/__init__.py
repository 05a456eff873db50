"""Parsers of outside input with random documents."""
