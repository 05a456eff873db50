"""Heartbeats of the stages that work in a loop, as keys that expire in Redis.

Readers of the fleet's state detect a stage that hangs by its missing key. Redis measures the time, so that the clocks
of processes do not matter.
"""

from __future__ import annotations

import time
from typing import Final

import redis

from dsf import keys

#: Stage -> seconds after which its mark expires.
SECONDS: Final = {keys.RESULTS_STAGE: 15, keys.SWEEP_STAGE: 60}


class Mark:
    """Renews the mark of one stage. Not thread-safe."""

    def __init__(self, client: redis.Redis, stage: str) -> None:
        self._redis = client
        self._key = keys.stage_mark(stage)
        self._seconds = SECONDS[stage]
        self._next = 0.0

    def set(self) -> None:
        """Renew the mark after a successful turn, at most six times per lifetime. Raises redis.RedisError."""
        if time.monotonic() >= self._next:
            self._redis.set(self._key, "1", ex=self._seconds)
            self._next = time.monotonic() + self._seconds / 6


def list_stalled_stages(client: redis.Redis) -> list[str]:
    """Return the stages without a mark, in the order of the path. Raises redis.RedisError."""
    marks = client.mget([keys.stage_mark(stage) for stage in SECONDS])
    return [stage for stage, mark in zip(SECONDS, marks, strict=True) if mark is None]
