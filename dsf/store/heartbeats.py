"""Heartbeats of the stages that work in a loop, as keys that expire in Redis.

Readers of the fleet's state detect a stage that hangs by its missing key. Redis measures the time, so that the clocks
of processes do not matter.
"""

from __future__ import annotations

import time
from typing import Final

import redis

from dsf import keys

#: Stage -> seconds after which its heartbeat expires.
HEARTBEAT_SECONDS: Final = {keys.RESULTS_STAGE: 15, keys.SWEEP_STAGE: 60}


class Heartbeat:
    """Renews the heartbeat of one stage. Instances are not thread-safe."""

    def __init__(self, client: redis.Redis, stage: str) -> None:
        self._redis = client
        self._key = keys.heartbeat(stage)
        self._seconds = HEARTBEAT_SECONDS[stage]
        self._next_renewal_at = 0.0

    def renew(self) -> None:
        """Renew the heartbeat after a successful pass, at most six times per lifetime. Raises redis.RedisError."""
        if time.monotonic() >= self._next_renewal_at:
            self._redis.set(self._key, "1", ex=self._seconds)
            self._next_renewal_at = time.monotonic() + self._seconds / 6


def list_stalled_stages(client: redis.Redis) -> list[str]:
    """Return the stages without a heartbeat, in the order of HEARTBEAT_SECONDS. Raises redis.RedisError."""
    values = client.mget([keys.heartbeat(stage) for stage in HEARTBEAT_SECONDS])
    return [stage for stage, value in zip(HEARTBEAT_SECONDS, values, strict=True) if value is None]
