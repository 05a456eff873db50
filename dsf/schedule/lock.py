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

#: Takes or extends it, also when Redis is full, as all of the hub's scripts. Returns whether it is ours now, and
#: whether it was before: the reply to an earlier attempt may have got lost.
_TAKE = """#!lua flags=allow-oom
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {0, 0}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, holder and 1 or 0}
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
        self._milliseconds = max(1, round(timeout * 1000))
        self._interval = timeout / _RENEWALS
        self._token = secrets.token_hex(16)
        self._take = client.register_script(_TAKE)
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
        held, was_ours = map(bool, self._take(keys=[keys.BEAT_LOCK], args=[self._token, self._milliseconds]))
        if self._held and not was_ours:
            log.warning("beat lost its lock", hint="it or redis stood still for longer than the lock lives")
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
