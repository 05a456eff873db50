"""Gives memory back to the system after a large payload."""

from __future__ import annotations

import contextlib
import ctypes
import sys

#: From malloc.h of glibc.
_M_MMAP_THRESHOLD = -3
#: Bytes; blocks of at least this size are returned when they are freed.
_LARGE = 1024 * 1024


def give_back_large_blocks() -> None:
    """Have the C library return large blocks to the system as soon as they are freed.

    By itself glibc raises the size from which on it does so to that of the largest block it has seen, up to 32 MB, and
    each thread keeps its own: after one answer of 20 MB per thread that memory would stay with the process. Does
    nothing where there is no glibc.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
