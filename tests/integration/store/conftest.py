"""Fixtures of the store's tests."""

from __future__ import annotations

import pytest
import redis

from tests.integration.results.bed import SECRET, ResultsHarness
from tests.support.fixtures import SettingsFactory
from tests.support.memorystore import memory_client


@pytest.fixture(params=["redis", "memory"])
def store_client(request: pytest.FixtureRequest) -> redis.Redis:
    """A client of an empty store: a real server, or the one in memory that replaces it in unit tests."""
    client: redis.Redis = memory_client() if request.param == "memory" else request.getfixturevalue("redis_client")
    return client


@pytest.fixture
def bed(redis_client: redis.Redis, settings_factory: SettingsFactory) -> ResultsHarness:
    """A hub without pairs."""
    return ResultsHarness(redis_client, settings_factory(signing_secret=SECRET))


@pytest.fixture
def bed_in_memory(settings_factory: SettingsFactory) -> ResultsHarness:
    """The same where Redis is in memory."""
    return ResultsHarness(memory_client(), settings_factory(signing_secret=SECRET))
