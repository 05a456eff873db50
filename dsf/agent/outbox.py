"""Sends signed results to the hub, as calls of the task `dsf.ingest`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import redis

import dsf.log
from dsf import keys, wire
from dsf.agent.ending import is_ending
from dsf.agent.mailbox import Letter, Mailbox
from dsf.agent.secrets import KeyRing
from dsf.errors import CycleError, SettingsError
from dsf.messages import INGEST_TASK, MOST_SUPERSEDED, PACKING, Result, sign
from dsf.store.pairs import SUCCESSES

log = dsf.log.get(__name__)

#: Seconds between tries while Redis is unreachable; the client itself retries briefly.
_WAIT = 1.0
#: Seconds between two tries while the mailbox is full.
_FULL_WAIT = 0.25
#: Max. superseded runs remembered until reported to the hub.
_MOST_TO_TELL = 1000


class Outbox:
    """Signs results and puts them into the cluster's mailbox. Thread-safe."""

    def __init__(self, client: redis.Redis, keyring: KeyRing, cluster: str, max_bytes: int) -> None:
        self._mailbox = Mailbox(client, cluster)
        #: Held while the client is in use.
        self.line = self._mailbox.line
        self._keyring = keyring
        self._lock = threading.Lock()
        self._waiting: list[Result] = []
        # Superseded runs (`<scorer>/<run id>`), to be reported with the next result.
        self._superseded: dict[str, None] = {}
        self._max_bytes = max_bytes
        self._background = ThreadPoolExecutor(1, thread_name_prefix="dsf-outbox")

    def send(self, result: Result, deadline: float) -> None:
        """Send with retries until `deadline` (time.monotonic()) or the agent's shutdown.

        While the hub is behind, a result waits; a newer waiting result of its scorer supersedes it, which the next
        result sent reports to the hub. Raises CycleError of stage publish with reason no_signing_key, too_large,
        connection_failed, results_behind or superseded.
        """
        with self._lock:
            superseded = list(self._superseded)[:MOST_SUPERSEDED]
            for run in superseded:
                del self._superseded[run]
        try:
            self._send(result, tuple(superseded), deadline)
        except CycleError as error:
            self._tell_later(superseded)
            if error.reason == "superseded":
                self._tell_later([f"{result.scorer}/{result.run}"])
            raise

    def _send(self, result: Result, superseded: tuple[str, ...], deadline: float) -> None:
        # Signed with the rest, so that only this agent can report it.
        result = result.model_copy(update={"superseded": list(superseded)})
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
        # The hub would refuse such a message unread, without feedback.
        if len(message) > self._max_bytes * PACKING:
            raise CycleError(
                "publish",
                "too_large",
                f"the message with the result has {len(message)} bytes, more than the {self._max_bytes * PACKING} that "
                "the hub takes; return fewer results or shorter labels",
            )
        letter = Letter(result.scorer, result.run, result.outcome in SUCCESSES, message, superseded)
        with self._lock:
            self._waiting.append(result)
        try:
            self._put(letter, result, deadline)
        finally:
            with self._lock:
                self._waiting = [other for other in self._waiting if other is not result]

    def _tell_later(self, runs: Iterable[str]) -> None:
        """Report these as superseded with the next result. Beyond the limit the hub declares them lost."""
        with self._lock:
            self._superseded.update(dict.fromkeys(runs))
            for run in list(self._superseded)[:-_MOST_TO_TELL]:
                del self._superseded[run]

    def _put(self, letter: Letter, result: Result, deadline: float) -> None:
        while True:
            try:
                is_in, superseded = self._mailbox.put(letter)
                self._tell_later(superseded)
                if is_in:
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
        """Whether a newer waiting result supersedes this one."""
        with self._lock:
            newer = [one for one in self._waiting if one.scorer == result.scorer and one.run > result.run]
        # A score is worth more than a newer reason for having none.
        return any(one.outcome in SUCCESSES or result.outcome not in SUCCESSES for one in newer)

    def send_later(self, result: Result, seconds: float) -> None:
        """Send from another thread: the caller, the worker's main loop, must not wait for Redis."""

        def work() -> None:
            try:
                self.send(result, time.monotonic() + seconds)
            except CycleError as error:
                log.error("result not sent", scorer=result.scorer, run=result.run, reason=error.reason)
            except Exception:
                # Nobody looks at this pool's futures.
                log.exception("result not sent", scorer=result.scorer, run=result.run)

        self._background.submit(work)

    def close(self) -> None:
        """Wait for pending sends."""
        self._background.shutdown(wait=True)
