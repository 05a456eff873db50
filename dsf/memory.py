"""Limits a process's memory: one heap for all threads, and unused memory returned to the system."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

#: From malloc.h of glibc.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
#: Bytes; blocks of at least this size are returned when they are freed.
_LARGE = 1024 * 1024


def share_heap() -> None:
    """Have all threads allocate from one heap. Call it before any thread is started.

    By itself glibc makes heaps until there are 8 for each core, and each keeps the most that any thread ever needed of
    it. Waiting for each other costs threads nothing that Python's own lock does not cost them already. Does nothing
    where there is no glibc.
    """
    _mallopt(_M_ARENA_MAX, 1)


def give_back_large_blocks() -> None:
    """Have the C library return large blocks to the system as soon as they are freed.

    By itself glibc raises the size from which on it does so to that of the largest block it has seen, up to 32 MB, and
    each thread keeps its own: after one answer of 20 MB per thread that memory would stay with the process. Does
    nothing where there is no glibc.
    """
    _mallopt(_M_MMAP_THRESHOLD, _LARGE)


def settle() -> None:
    """All that stays has been made: the garbage of the start goes, and the rest is not looked at by each collection."""
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """Return free memory to the system, also small pieces. Does nothing where there is no glibc."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _mallopt(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(option, value)
