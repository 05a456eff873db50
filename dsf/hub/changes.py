"""Passes users' actions on: to the API server as Events of a DynamicScorer, which the users have no right to create;
and to the health checks, requests to read a /config now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import redis

from dsf import keys
from dsf.backends.protocol import Backend, ObjectKey
from dsf.fleet.changes import Action, Change, after, moment
from dsf.store.client import at_once

#: The reason of each Event. Actions without a DynamicScorer become none.
REASONS: Final = {
    Action.RESCORE: "Rescored",
    Action.PAUSE: "Paused",
    Action.RESUME: "Resumed",
    Action.INTERVAL: "IntervalChanged",
    Action.RESET: "ChangesReset",
}
#: Age in seconds from which an action is skipped; Kubernetes keeps an Event for an hour.
_OLD: Final = 3600.0


class ChangeTeller:
    """Thread-safe. Each action is recorded once, also if no hub ran then; after a crash twice or never."""

    def __init__(
        self,
        client: redis.Redis,
        backend: Backend,
        scorers_called: Callable[[str], Iterable[ObjectKey]],
        on_sync: Callable[[ObjectKey, str], None],
    ) -> None:
        """`scorers_called` finds DynamicScorers by name; `on_sync` gets requests to read a /config, with their ids."""
        self._redis = client
        self._backend = backend
        self._scorers_called = scorers_called
        self._on_sync = on_sync
        self._lock = threading.Lock()

    def tell(self) -> None:
        """Create Events for new actions. Raises redis.RedisError."""
        with self._lock:
            oldest = f"{int((time.time() - _OLD) * 1000)}-0"
            stored = self._redis.get(keys.CHANGES_TOLD)
            last = oldest if stored is None else max(str(stored), oldest, key=moment)
            while batch := after(self._redis, last):
                for _, change in batch:
                    if change is not None:
                        self._tell(change)
                last = batch[-1][0]
                at_once(self._redis, ("SET", keys.CHANGES_TOLD, last))

    def _tell(self, change: Change) -> None:
        if change.action is Action.SYNC:
            for key in self._scorers_called(change.scorer):
                self._on_sync(key, change.id)
        reason = REASONS.get(change.action)
        for key in self._scorers_called(change.scorer) if reason else ():
            self._backend.event(key, "Normal", reason or "", change.sentence)
