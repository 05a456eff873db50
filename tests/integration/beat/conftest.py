"""Fixtures of the schedule's tests."""

from __future__ import annotations

import pytest
import redis

from tests.integration.beat.support import Bench


@pytest.fixture
def bench(redis_client: redis.Redis) -> Bench:
    """A beat without entries."""
    return Bench(redis_client)
