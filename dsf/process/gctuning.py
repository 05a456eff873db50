"""Less work for Python's garbage collector in long-running processes.

The images limit the heaps of the C library by its own variables (`MALLOC_ARENA_MAX`, `MALLOC_MMAP_THRESHOLD_`).
"""

from __future__ import annotations

import gc


def prepare() -> None:
    """Let Python look for garbage after 20,000 new objects, and soon at older ones. Call it before any thread.

    By default it looks after 700: what an answer or a batch of results consists of would be looked at again and again
    while it is needed. And it looks at the older ones a tenth as often as at those before: of an agent whose cycles
    fail, 100 MB of errors with their frames would wait for that.
    """
    gc.set_threshold(20_000, 1, 1)


def settle() -> None:
    """Call it after startup: collects garbage and excludes the remaining objects from later collections."""
    gc.collect()
    gc.freeze()
