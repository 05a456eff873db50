"""Signs results and puts them into the cluster's mailbox on the hub."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import redis

import dsf.log
from dsf.agent.ending import is_ending
from dsf.agent.line import Line
from dsf.agent.mailbox import Mail, Mailbox
from dsf.agent.secrets import KeyRing
from dsf.errors import CycleError, SettingsError
from dsf.messages import PACKING, Result, sign
from dsf.store.pairs import SUCCESSES

log = dsf.log.get(__name__)

#: Seconds between tries while Redis is unreachable; the client itself retries briefly.
_WAIT = 1.0
#: Seconds between two tries while the mailbox is full.
_FULL_WAIT = 0.25


class Outbox:
    """Signs results and puts them into the mailbox. Thread-safe."""

    def __init__(self, client: redis.Redis, keyring: KeyRing, cluster: str, max_bytes: int) -> None:
        self._mailbox = Mailbox(client, cluster)
        #: For what else this agent asks of Redis.
        self.line = Line(client)
        self._keyring = keyring
        self._max_bytes = max_bytes
        self._background = ThreadPoolExecutor(1, thread_name_prefix="dsf-outbox")

    def send(self, result: Result, deadline: float) -> None:
        """Send with retries until `deadline` (time.monotonic()) or the agent's shutdown.

        Raises CycleError of stage publish with reason no_signing_key, too_large, connection_failed or results_behind.
        """
        text = self._signed(result)
        mail = Mail(result.scorer, result.run, result.outcome in SUCCESSES)
        while True:
            try:
                if self._mailbox.put(mail, text):
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
            if is_ending() or time.monotonic() + wait >= deadline:
                raise failure
            time.sleep(wait)

    def _signed(self, result: Result) -> bytes:
        """The envelope, as JSON. Raises CycleError without a key, and for a result that the hub would refuse unread."""
        try:
            envelope = sign(result, self._keyring.key())
        except SettingsError as error:
            raise CycleError("publish", "no_signing_key", str(error)) from None
        # A lone surrogate in a label must fail in the hub's validation, not here.
        text = json.dumps(envelope, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        for size, limit, unit in (
            (len(envelope["body"]), self._max_bytes, "characters"),
            (len(text), self._max_bytes * PACKING, "bytes"),
        ):
            if size > limit:
                raise CycleError(
                    "publish",
                    "too_large",
                    f"the result has {size} {unit}, more than the {limit} that the hub takes; "
                    "return fewer results or shorter labels",
                )
        return text

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
