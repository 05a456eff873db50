"""Limits a process's memory, and what looking for unused memory costs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

#: From malloc.h of glibc.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
#: Bytes; blocks of at least this size are returned when they are freed.
_LARGE = 1024 * 1024


def prepare() -> None:
    """Let all threads allocate from one heap, and Python look for garbage after 20,000 new objects. Call it before any
    thread is started.

    By default glibc creates up to 8 heaps per core, and each keeps its peak memory. Contention costs nothing beyond
    Python's global lock. And by default Python looks after 700 new objects: what an answer or a batch of results
    consists of would be looked at again and again while it is needed, a tenth of what a cycle of `bench.cycle` costs.
    """
    _mallopt(_M_ARENA_MAX, 1)
    gc.set_threshold(20_000)


def give_back_large_blocks() -> None:
    """Let the C library return large blocks to the system when they are freed.

    By default glibc raises this threshold to the largest freed block, up to 32 MB, and each thread keeps its own: after
    one answer of 20 MB per thread, that memory would stay in the process. Does nothing without glibc.
    """
    _mallopt(_M_MMAP_THRESHOLD, _LARGE)


def settle() -> None:
    """Call it after startup: collects garbage and excludes the remaining objects from later collections."""
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """Return free memory to the system, including small pieces. Does nothing without glibc."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _mallopt(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(option, value)
