"""Tunes Python's garbage collector for long-running processes.

The images also tune the C library's allocator, by its variables `MALLOC_ARENA_MAX` and `MALLOC_MMAP_THRESHOLD_`.
"""

from __future__ import annotations

import gc


def set_thresholds() -> None:
    """Collect all generations after every 20,000 new objects. Call it before starting threads.

    With Python's default of 700 objects, the collector would scan the objects of a response or a batch of results many
    times while they are in use. By default, it would also collect the older generations only at every tenth collection,
    which would keep up to 100 MB of exceptions with their frames in an agent whose cycles fail.
    """
    gc.set_threshold(20_000, 1, 1)


def freeze_objects() -> None:
    """Collect garbage, and exclude the remaining objects from later collections. Call it after startup."""
    gc.collect()
    gc.freeze()
