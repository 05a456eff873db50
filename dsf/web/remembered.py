"""Answers of the hub's API server, kept for some seconds: what is revoked ends after that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Remembered(Generic[_Key, _Value]):
    """Answers by key. Thread-safe; an answer may be asked for several times at once."""

    def __init__(self, seconds: float = 10.0, most: int = 2000) -> None:
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        self._known: dict[_Key, tuple[float, _Value]] = {}

    def get(self, key: _Key, ask: Callable[[], _Value]) -> _Value:
        """The answer, asked for again if it is too old. Raises what `ask` raises."""
        with self._lock:
            known = self._known.get(key)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        value = ask()
        with self._lock:
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[key] = (time.monotonic() + self._seconds, value)
        return value
