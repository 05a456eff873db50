"""Renderings that all viewers share for some seconds, much longer than it took to make them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class _Entry(Generic[_Value]):
    """One value, made by one thread at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: _Value | None = None
        self.until = 0.0


class Shared(Generic[_Value]):
    """Values by key, of which the `most` that were asked for last are kept. Thread-safe."""

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry[_Value]] = {}

    def get(self, key: str, make: Callable[[], _Value], *, is_new: bool = False) -> _Value:
        """The value, made again if it is too old or has to be new. Raises what `make` raises."""
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            self._entries[key] = entry
            if len(self._entries) > self._most:
                del self._entries[next(iter(self._entries))]
        with entry.lock:
            if is_new or entry.value is None or time.monotonic() >= entry.until:
                began = time.thread_time()
                entry.value = make()
                # One page takes at most a tenth of a core, however many viewers it has.
                entry.until = time.monotonic() + max(self._seconds, 10 * (time.thread_time() - began))
            return entry.value
