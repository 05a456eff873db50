"""Lock that elects the active beat.

Correctness does not depend on it: two active beats still send every tick once (`lua/dispatch.lua`). It avoids duplicate
work by a standby, and granting a rate limit twice.
"""

from __future__ import annotations

import secrets
import time

import redis

import dsf.log
from dsf import keys
from dsf.store.client import at_once

log = dsf.log.get(__name__)


class BeatLock:
    """Held by at most one beat. A lost lock is requested again, without exit."""

    def __init__(self, client: redis.Redis, timeout: float) -> None:
        """`timeout` in seconds: the lock expires that long after the holder's death."""
        self._milliseconds = max(1, round(timeout * 1000))
        # Several renewals may fail before the lock is lost.
        self._interval = timeout / 5
        self._token = secrets.token_hex(16)
        self._client = client
        self._held = False
        self._told: bool | None = None
        self._renew_at = 0.0

    @property
    def poll(self) -> float:
        """Seconds between a standby's requests."""
        return min(1.0, self._interval)

    def ensure(self) -> bool:
        """Whether this beat is active now; takes or extends the lock if needed.

        Raises redis.RedisError; the next call then tries again.
        """
        now = time.monotonic()
        if self._held and now < self._renew_at:
            return True
        holder, remaining = at_once(
            self._client,
            ("SET", keys.BEAT_LOCK, self._token, "NX", "GET", "PX", self._milliseconds),
            ("PTTL", keys.BEAT_LOCK),
        )
        held = holder in (None, self._token)
        # Of another's lock that lives that much longer than any: the clock of Redis was set back, and the holder may be
        # dead. Should a lock have expired since, what is extended is its successor's, which does no harm.
        if holder == self._token or (not held and remaining > self._milliseconds + 60_000):
            self._client.pexpire(keys.BEAT_LOCK, self._milliseconds)
        if self._held and holder != self._token:
            log.warning("beat lost its lock", hint="it or redis stood still for longer than the lock lives")
        if held != self._told:
            log.info("beat is active" if held else "another beat is active, this one stands by")
        self._told = held
        self._held, self._renew_at = held, now + self._interval
        return held

    def release(self) -> None:
        """Release the lock if held, so that a standby need not wait. Raises redis.RedisError."""
        # Also if not known to be held: a signal may interrupt between taking and recording it.
        self._held = False
        # Two commands: should the lock expire between them and another beat get it, both are active for a moment.
        if self._client.get(keys.BEAT_LOCK) == self._token:
            self._client.delete(keys.BEAT_LOCK)
