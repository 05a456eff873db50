"""Fixtures of the results worker's tests."""

from __future__ import annotations

import pytest
import redis

from tests.integration.results.bed import SECRET, ResultsHarness
from tests.support.fixtures import SettingsFactory


@pytest.fixture
def bed(redis_client: redis.Redis, redis_url: str, settings_factory: SettingsFactory) -> ResultsHarness:
    """A hub with the pair c1/s1."""
    bed = ResultsHarness(redis_client, settings_factory(redis_url=redis_url, signing_secret=SECRET))
    bed.add()
    return bed
