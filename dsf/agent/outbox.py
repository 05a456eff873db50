"""Sends results to the hub: signed, as calls of the task `dsf.ingest`."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import redis

import dsf.log
from dsf import keys, wire
from dsf.agent.ending import is_ending
from dsf.agent.mailbox import Mailbox
from dsf.agent.secrets import KeyRing
from dsf.errors import CycleError, SettingsError
from dsf.messages import INGEST_TASK, PACKING, Result, sign
from dsf.store.pairs import SUCCESSES

log = dsf.log.get(__name__)

#: Seconds between two tries while Redis is away; the client itself tries for a short while.
_WAIT = 1.0
#: Seconds between two tries while the mailbox is full.
_FULL_WAIT = 0.25


class Outbox:
    """Signs results and puts them into the cluster's mailbox. Thread-safe."""

    def __init__(self, client: redis.Redis, keyring: KeyRing, cluster: str, max_bytes: int) -> None:
        self._mailbox = Mailbox(client, cluster)
        self._keyring = keyring
        self._lock = threading.Lock()
        self._waiting: list[Result] = []
        self._max_bytes = max_bytes
        self._background = ThreadPoolExecutor(1, thread_name_prefix="dsf-outbox")

    def send(self, result: Result, deadline: float) -> None:
        """Send until it is sent, or `deadline` (time.monotonic()) has passed, or the agent is to end.

        While the hub is behind, a result waits; one whose scorer has a newer one that waits as well gives way to it.
        Raises CycleError of stage publish with reason no_signing_key, too_large, connection_failed, results_behind or
        superseded.
        """
        # Signed with the rest, so that only this agent can say so.
        result = result.model_copy(update={"mail": True})
        try:
            envelope = sign(result, self._keyring.key())
        except SettingsError as error:
            raise CycleError("publish", "no_signing_key", str(error)) from None
        size = len(envelope["body"])
        if size > self._max_bytes:
            raise CycleError(
                "publish",
                "too_large",
                f"the result has {size} characters, more than the {self._max_bytes} that the hub takes; "
                "return fewer results or shorter labels",
            )
        message = wire.call(
            INGEST_TASK,
            (envelope,),
            keys.RESULTS_QUEUE,
            # For Flower and logs, instead of the first thousand characters of the envelope.
            argsrepr=repr((result.cluster, result.scorer, result.run)),
        )
        # The hub refuses such a message unread, without a reason to the sender.
        if len(message) > self._max_bytes * PACKING:
            raise CycleError(
                "publish",
                "too_large",
                f"the message with the result has {len(message)} bytes, more than the {self._max_bytes * PACKING} that "
                "the hub takes; return fewer results or shorter labels",
            )
        with self._lock:
            self._waiting.append(result)
        try:
            self._put(message, result, deadline)
        finally:
            with self._lock:
                self._waiting = [other for other in self._waiting if other is not result]

    def _put(self, message: bytes, result: Result, deadline: float) -> None:
        while True:
            try:
                if self._mailbox.put(message):
                    return
                wait = _FULL_WAIT
                failure = CycleError(
                    "publish",
                    "results_behind",
                    "the hub has taken no result of this cluster for so long; check its results workers",
                )
            except redis.RedisError as error:
                wait = _WAIT
                failure = CycleError("publish", "connection_failed", "the result cannot be sent, Redis is away")
                failure.__cause__ = error
            if self._is_superseded(result):
                raise CycleError(
                    "publish", "superseded", "it could not be sent before there was a newer one of this scorer"
                )
            if is_ending() or time.monotonic() + wait >= deadline:
                raise failure
            time.sleep(wait)

    def _is_superseded(self, result: Result) -> bool:
        """Whether a newer result waits that says what this one says, and more of now."""
        with self._lock:
            newer = [one for one in self._waiting if one.scorer == result.scorer and one.run > result.run]
        # A score is worth more than a newer reason why there is none.
        return any(one.outcome in SUCCESSES or result.outcome not in SUCCESSES for one in newer)

    def send_later(self, result: Result, seconds: float) -> None:
        """Send from another thread: the worker's main loop, which calls this, must not wait for Redis."""

        def work() -> None:
            try:
                self.send(result, time.monotonic() + seconds)
            except CycleError as error:
                log.error("result not sent", scorer=result.scorer, run=result.run, reason=error.reason)

        self._background.submit(work)

    def close(self) -> None:
        """Wait for what is being sent."""
        self._background.shutdown(wait=True)
