"""Computes a value once for all concurrent callers, such as a page, a scrape or a response of the API server."""

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
    """A value that is computed or being computed, and the monotonic time at which it expires."""

    def __init__(self, compute_lock: threading.Lock) -> None:
        self.value: Future[_Value] = Future()
        self.expires_at = math.inf
        #: Lock of the key, so that only one thread at a time computes its value.
        self.compute_lock = compute_lock
        self.has_begun = False


class ValueCache(Generic[_Key, _Value]):
    """Caches the `max_entries` most recently used values for some seconds each. Thread-safe.

    All concurrent callers get the same value or the same error. At most `max_threads` threads compute a value or wait
    for one, because each of them occupies one of the 40 threads that handle requests.
    """

    def __init__(self, seconds: float = 0.0, max_entries: int = 100, max_threads: int = sys.maxsize) -> None:
        self._seconds = seconds
        self._max_entries = max_entries
        self._thread_semaphore = threading.BoundedSemaphore(max_threads)
        self._lock = threading.Lock()
        self._entries: OrderedDict[_Key, _Entry[_Value]] = OrderedDict()

    def get(self, key: _Key, make: Callable[[], _Value], *, is_new: bool = False) -> _Value:
        """Return the value of `key`. Calls `make` if there is no value or it has expired.

        With `is_new`, only returns a value whose computation begins after this call. Raises the errors of `make`, and
        BackendError if too many threads compute or wait.
        """
        with self._lock:
            entry = self._entries.get(key)
            # An entry whose computation has not begun yet is new enough for `is_new`.
            must_compute = entry is None or (is_new and entry.has_begun) or time.monotonic() >= entry.expires_at
            if entry is None or must_compute:
                entry = _Entry(entry.compute_lock if entry is not None else threading.Lock())
            elif entry.value.done():
                self._entries.move_to_end(key)
                return entry.value.result()
            if not self._thread_semaphore.acquire(blocking=False):
                raise BackendError("the hub's API server is asked too much at a time")
            self._entries[key] = entry
            self._entries.move_to_end(key)
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
        try:
            return self._compute(key, entry, make) if must_compute else entry.value.result()
        finally:
            self._thread_semaphore.release()

    def _compute(self, key: _Key, entry: _Entry[_Value], make: Callable[[], _Value]) -> _Value:
        """Compute the value of an entry, and pass the value or the error to all waiting threads."""
        cpu_start = time.thread_time()
        try:
            with entry.compute_lock:
                entry.has_begun = True
                value = make()
        except BaseException as error:
            self._evict(key, entry)
            entry.value.set_exception(error)
            raise
        if self._seconds:
            # Keep expensive values longer, so that computing them takes at most a tenth of a core.
            entry.expires_at = time.monotonic() + max(self._seconds, 10 * (time.thread_time() - cpu_start))
        else:
            self._evict(key, entry)
        entry.value.set_result(value)
        return value

    def _evict(self, key: _Key, entry: _Entry[_Value]) -> None:
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]
