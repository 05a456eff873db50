"""Tunes Python's garbage collector for long-running processes.

The images tune the C library's allocator by its own variables (`MALLOC_ARENA_MAX`, `MALLOC_MMAP_THRESHOLD_`).
"""

from __future__ import annotations

import gc


def prepare() -> None:
    """Collect the youngest generation every 20,000 new objects, and the older ones with it. Call it before any thread.

    With Python's default of 700 objects, the collector would scan the objects of one response or one batch of results
    many times while they are in use. Collecting older generations only at every tenth collection, as Python does, would
    keep up to 100 MB of exceptions with their frames in an agent whose cycles fail.
    """
    gc.set_threshold(20_000, 1, 1)


def settle() -> None:
    """Collect garbage, and exclude the remaining objects from later collections. Call it after startup."""
    gc.collect()
    gc.freeze()
