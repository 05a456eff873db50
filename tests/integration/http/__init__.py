"""Tests of dsf.http."""
