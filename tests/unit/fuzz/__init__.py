"""Parsers of outside input, given what nobody would write."""
