"""Measures the framework, as the images run it: `python -m bench`."""

from __future__ import annotations

import os

#: Limits of the C library's heaps, as in the Dockerfile. Processes that a bench starts inherit them.
HEAPS = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "1048576"}
os.environ.update(HEAPS)
