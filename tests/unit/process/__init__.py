"""Tests of dsf.process."""
