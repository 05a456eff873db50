"""Marks of the stages that work in a loop: each sets its own, which Redis removes if it is not set again.

Readers of the fleet's state notice a missing mark, so a stage that stands still need not say so itself. Redis counts
the time, so no process's clock matters.
"""

from __future__ import annotations

import time
from typing import Final

import redis

from dsf import keys

#: Stage -> seconds after which its mark is gone.
SECONDS: Final = {keys.RESULTS_STAGE: 15, keys.SWEEP_STAGE: 60}


class Mark:
    """The mark of one stage. For one thread."""

    def __init__(self, client: redis.Redis, stage: str) -> None:
        self._redis = client
        self._key = keys.stage_mark(stage)
        self._seconds = SECONDS[stage]
        self._next = 0.0

    def set(self) -> None:
        """A turn of the stage has succeeded. Writes seldom. Raises redis.RedisError."""
        if time.monotonic() >= self._next:
            self._redis.set(self._key, "1", ex=self._seconds)
            self._next = time.monotonic() + self._seconds / 6


def standing(client: redis.Redis) -> list[str]:
    """Return the stages without a mark, in the order of the path. Raises redis.RedisError."""
    marks = client.mget([keys.stage_mark(stage) for stage in SECONDS])
    return [stage for stage, mark in zip(SECONDS, marks, strict=True) if mark is None]
