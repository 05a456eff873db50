"""Sends results to the hub: signed, as calls of the task `dsf.ingest`."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import redis

import dsf.log
from dsf import keys
from dsf.agent import wire
from dsf.agent.secrets import KeySource
from dsf.errors import CycleError, SettingsError
from dsf.messages import INGEST_TASK, PACKING, Result, sign

log = dsf.log.get(__name__)

#: Seconds between two tries while Redis is away; the client itself tries for a short while.
_WAIT = 1.0


class Outbox:
    """Signs results and puts them into the results queue. Thread-safe."""

    def __init__(self, client: redis.Redis, keyring: KeySource, max_bytes: int) -> None:
        self._redis = client
        self._keyring = keyring
        self._max_bytes = max_bytes
        self._background = ThreadPoolExecutor(1, thread_name_prefix="dsf-outbox")

    def send(self, result: Result, deadline: float) -> None:
        """Send until it is sent or `deadline` (time.monotonic()) has passed.

        Raises CycleError of stage publish with reason no_signing_key, too_large or connection_failed.
        """
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
        # The hub refuses such a one unread: nobody would hear why.
        if len(message) > self._max_bytes * PACKING:
            raise CycleError(
                "publish",
                "too_large",
                f"the message with the result has {len(message)} bytes, more than the {self._max_bytes * PACKING} that "
                "the hub takes; return fewer results or shorter labels",
            )
        while True:
            try:
                self._redis.lpush(keys.RESULTS_QUEUE, message)
            except redis.RedisError as error:
                if time.monotonic() + _WAIT >= deadline:
                    raise CycleError(
                        "publish", "connection_failed", "the result cannot be sent, Redis is away"
                    ) from error
                time.sleep(_WAIT)
            else:
                return

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
