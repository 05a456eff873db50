"""Tests on real pods: `make node`."""
