"""What is made for one viewer and shared with others for some seconds: pages, and answers of the hub's API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from dsf.errors import BackendError

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _Entry(Generic[_Value]):
    """One value, made by one thread at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.until = 0.0
        #: How often it was made, and what came of the last time.
        self.ended = 0
        self.value: _Value
        self.error: Exception | None = None


class Shared(Generic[_Key, _Value]):
    """Values by key, the `most` that were asked for last. Thread-safe.

    Each is made once for all who ask meanwhile: they get the same value, or the same error. If `turns` is given, at
    most so many threads make one or wait for one: each is one of the 40 that answer requests.
    """

    def __init__(self, seconds: float, most: int, turns: int | None = None) -> None:
        self._seconds = seconds
        self._most = most
        self._turns = threading.BoundedSemaphore(turns) if turns else None
        self._lock = threading.Lock()
        self._entries: dict[_Key, _Entry[_Value]] = {}

    def get(self, key: _Key, make: Callable[[], _Value], *, is_new: bool = False) -> _Value:
        """The value, made again if it is too old or has to be new. Raises what `make` raises.

        Raises BackendError when too many threads are at it.
        """
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            self._entries[key] = entry
            if len(self._entries) > self._most:
                del self._entries[next(iter(self._entries))]
            ended = entry.ended
            if not is_new and time.monotonic() < entry.until:
                return entry.value
        try:
            return self._in_turn(entry, make, ended, is_new=is_new)
        except Exception:
            with self._lock:
                # What failed takes no other's place. Those who wait for it have it still.
                if self._entries.get(key) is entry and not entry.lock.locked() and time.monotonic() >= entry.until:
                    del self._entries[key]
            raise

    def _in_turn(self, entry: _Entry[_Value], make: Callable[[], _Value], ended: int, *, is_new: bool) -> _Value:
        if self._turns is None:
            return self._made(entry, make, ended, is_new=is_new)
        if not self._turns.acquire(blocking=False):
            raise BackendError("the hub's API server is asked too much at a time")
        try:
            return self._made(entry, make, ended, is_new=is_new)
        finally:
            self._turns.release()

    def _made(self, entry: _Entry[_Value], make: Callable[[], _Value], ended: int, *, is_new: bool) -> _Value:
        with entry.lock:
            if not is_new and time.monotonic() < entry.until:
                return entry.value
            if entry.ended > ended and entry.error is not None:
                # It failed while this thread waited.
                raise entry.error
            began = time.thread_time()
            entry.until, entry.error = 0.0, None
            try:
                entry.value = make()
            except Exception as error:
                entry.error = error
                raise
            finally:
                entry.ended += 1
            # One page takes at most a tenth of a core, however many viewers it has.
            entry.until = time.monotonic() + max(self._seconds, 10 * (time.thread_time() - began))
            return entry.value
