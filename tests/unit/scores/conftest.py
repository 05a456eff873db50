"""Fixtures of the tests in this folder."""

from __future__ import annotations

import pytest

from tests.integration.results.bed import SECRET, ResultsHarness
from tests.support.fixtures import SettingsFactory
from tests.support.memorystore import memory_client


@pytest.fixture
def bed(settings_factory: SettingsFactory) -> ResultsHarness:
    """Return a hub with the pair c1/s1, whose Redis is in memory."""
    bed = ResultsHarness(memory_client(), settings_factory(signing_secret=SECRET))
    bed.add()
    return bed
