"""Signs results and puts them into the cluster's mailbox on the hub."""

from __future__ import annotations

import json
import threading
import time

import redis

from dsf.agent.mailbox import Mail, Mailbox
from dsf.agent.secrets import KeyRing
from dsf.errors import CycleError, SettingsError
from dsf.messages import PACKING, Result, sign
from dsf.store.pairs import SUCCESSES


class Outbox:
    """Signs results and puts them into the mailbox. Thread-safe."""

    def __init__(
        self, client: redis.Redis, keyring: KeyRing, cluster: str, max_bytes: int, ending: threading.Event | None = None
    ) -> None:
        """`ending` is set at shutdown: what cannot be sent then is given up."""
        self._mailbox = Mailbox(client, cluster)
        self._keyring = keyring
        self._max_bytes = max_bytes
        self._ending = ending or threading.Event()

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
                wait = 0.25
                failure = CycleError(
                    "publish",
                    "results_behind",
                    "the hub has taken no result of this cluster for so long; check its results workers",
                )
            except redis.RedisError as error:
                # While Redis is unreachable; the client itself retries briefly.
                wait = 1.0
                failure = CycleError("publish", "connection_failed", "the result cannot be sent, Redis is away")
                failure.__cause__ = error
            if time.monotonic() + wait >= deadline or self._ending.wait(wait):
                raise failure

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
