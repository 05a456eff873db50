"""Fixtures of the tests in this folder."""

from __future__ import annotations

import pytest

from tests.conftest import SettingsFactory
from tests.integration.results.bed import SECRET, Bed
from tests.support.memorystore import memory_client


@pytest.fixture
def bed(settings_factory: SettingsFactory) -> Bed:
    """A hub with the pair c1/s1, whose Redis is in memory."""
    bed = Bed(memory_client(), settings_factory(signing_secret=SECRET))
    bed.add()
    return bed
