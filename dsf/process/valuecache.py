"""Values that are made for one caller and shared with others: pages, scrapes, answers of the hub's API server."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from dsf.errors import BackendError

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _Entry(Generic[_Value]):
    """A value that is being made or was made, and until when it counts (monotonic)."""

    def __init__(self, turn: threading.Lock) -> None:
        self.value: Future[_Value] = Future()
        self.until = math.inf
        #: Lock of the key: one thread at a time makes its value.
        self.turn = turn
        self.is_begun = False


class ValueCache(Generic[_Key, _Value]):
    """Values by key, the `max_entries` most recently used ones, each for some seconds. Thread-safe.

    Each is computed once for all concurrent callers, who get the same value or the same error. At most `turns` threads
    compute a value or wait for one, as each of them occupies one of the 40 threads that answer requests.
    """

    def __init__(self, seconds: float = 0.0, max_entries: int = 100, turns: int = sys.maxsize) -> None:
        self._seconds = seconds
        self._max_entries = max_entries
        self._turns = threading.BoundedSemaphore(turns)
        self._lock = threading.Lock()
        self._entries: OrderedDict[_Key, _Entry[_Value]] = OrderedDict()

    def get(self, key: _Key, make: Callable[[], _Value], *, is_new: bool = False) -> _Value:
        """The value, made again if it is too old or has to be new. Raises what `make` raises.

        Raises BackendError when too many threads are at it.
        """
        with self._lock:
            entry = self._entries.get(key)
            # A value that no thread has begun to make is new, too.
            is_mine = entry is None or (is_new and entry.is_begun) or time.monotonic() >= entry.until
            if entry is None or is_mine:
                entry = _Entry(entry.turn if entry is not None else threading.Lock())
            elif entry.value.done():
                self._entries.move_to_end(key)
                return entry.value.result()
            if not self._turns.acquire(blocking=False):
                raise BackendError("the hub's API server is asked too much at a time")
            self._entries[key] = entry
            self._entries.move_to_end(key)
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
        try:
            return self._make(key, entry, make) if is_mine else entry.value.result()
        finally:
            self._turns.release()

    def _make(self, key: _Key, mine: _Entry[_Value], make: Callable[[], _Value]) -> _Value:
        began = time.thread_time()
        try:
            with mine.turn:
                mine.is_begun = True
                value = make()
        except BaseException as error:
            self._forget(key, mine)
            mine.value.set_exception(error)
            raise
        if self._seconds:
            # Making a page takes at most a tenth of a core, however many viewers it has.
            mine.until = time.monotonic() + max(self._seconds, 10 * (time.thread_time() - began))
        else:
            self._forget(key, mine)
        mine.value.set_result(value)
        return value

    def _forget(self, key: _Key, mine: _Entry[_Value]) -> None:
        with self._lock:
            if self._entries.get(key) is mine:
                del self._entries[key]
