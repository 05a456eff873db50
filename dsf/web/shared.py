"""Values that all viewers share for some seconds, much longer than it took to make them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class Shared(Generic[_Value]):
    """One value, made once at a time. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._value: _Value | None = None
        self._until = 0.0

    def get(self, make: Callable[[], _Value], *, is_new: bool = False) -> _Value:
        """The value, made again if it is too old or has to be new. Raises what `make` raises."""
        with self._lock:
            if is_new or self._value is None or time.monotonic() >= self._until:
                began = time.thread_time()
                self._value = make()
                # One page takes at most a tenth of a core, however many viewers it has.
                self._until = time.monotonic() + max(self._seconds, 10 * (time.thread_time() - began))
            return self._value


class SharedByKey(Generic[_Value]):
    """Values by key, of which the `most` that were asked for last are kept. Thread-safe."""

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        self._values: dict[str, Shared[_Value]] = {}

    def get(self, key: str, make: Callable[[], _Value], *, is_new: bool = False) -> _Value:
        """See `Shared.get`."""
        with self._lock:
            shared = self._values.pop(key, None) or Shared(self._seconds)
            self._values[key] = shared
            if len(self._values) > self._most:
                del self._values[next(iter(self._values))]
        return shared.get(make, is_new=is_new)
