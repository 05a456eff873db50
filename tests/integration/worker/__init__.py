"""Tests of dsf.worker."""
