"""Tests of dsf.fleet without a Redis server."""
