"""The lock that makes one beat the active one.

Exactness does not rest on it: two beats at work still send every tick once (`lua/dispatch.lua`). It keeps a standby
from doing everything twice, and a rate limit from being granted twice.
"""

from __future__ import annotations

import secrets
import time

import redis

import dsf.log
from dsf import keys

log = dsf.log.get(__name__)

_EXTEND = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""
#: The lock is extended and asked for this often within its life: several attempts may fail before it is lost.
_RENEWALS = 5


class BeatLock:
    """Held by at most one beat. A lost lock is asked for again: no reason to exit."""

    def __init__(self, client: redis.Redis, timeout: float) -> None:
        """`timeout` in seconds: how long after the holder's death the lock is free."""
        self._redis = client
        self._milliseconds = max(1, round(timeout * 1000))
        self._interval = timeout / _RENEWALS
        self._token = secrets.token_hex(16)
        self._extend = client.register_script(_EXTEND)
        self._release = client.register_script(_RELEASE)
        self._held = False
        self._told: bool | None = None
        self._renew_at = 0.0

    @property
    def poll(self) -> float:
        """Seconds after which a standby asks again."""
        return min(1.0, self._interval)

    def ensure(self) -> bool:
        """Whether this beat is the active one now; takes or extends the lock when needed.

        Raises redis.RedisError; the next call then asks again.
        """
        now = time.monotonic()
        if self._held and now < self._renew_at:
            return True
        arguments: list[str | int] = [self._token, self._milliseconds]
        held = self._held and bool(self._extend(keys=[keys.BEAT_LOCK], args=arguments))
        if self._held and not held:
            log.warning("beat lost its lock", hint="it or redis stood still for longer than the lock lives")
        held = held or bool(self._redis.set(keys.BEAT_LOCK, self._token, nx=True, px=self._milliseconds))
        # The reply to an earlier attempt may have got lost: then the lock is ours without our knowing.
        held = held or (not self._held and bool(self._extend(keys=[keys.BEAT_LOCK], args=arguments)))
        if held != self._told:
            log.info("beat is active" if held else "another beat is active, this one stands by")
        self._told = held
        self._held, self._renew_at = held, now + self._interval
        return held

    def release(self) -> None:
        """Free the lock if it is ours, so that a standby needs not wait. Raises redis.RedisError."""
        # Asked also when we do not know of holding it: a signal may have come between taking it and knowing.
        self._held = False
        self._release(keys=[keys.BEAT_LOCK], args=[self._token])
