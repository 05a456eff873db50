"""Less work for Python's garbage collector in long-running processes.

The images limit the heaps of the C library by its own variables (`MALLOC_ARENA_MAX`, `MALLOC_MMAP_THRESHOLD_`).
"""

from __future__ import annotations

import gc


def prepare() -> None:
    """Collect garbage after 20,000 new objects, and soon among older ones. Call it before any thread.

    Python's default is 700 new objects: those of a response or a batch of results would be scanned again and again
    while they are needed. Older generations are scanned a tenth as often as the one before: in an agent whose cycles
    fail, 100 MB of errors with their frames would wait for that.
    """
    gc.set_threshold(20_000, 1, 1)


def settle() -> None:
    """Call it after startup: collects garbage and excludes the remaining objects from later collections."""
    gc.collect()
    gc.freeze()
