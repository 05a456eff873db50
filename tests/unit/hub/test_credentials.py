"""Credentials of clusters if Redis cannot have users for them."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from dsf.errors import SettingsError
from dsf.hub.credentials import AgentCredentials
from tests.support.fixtures import SettingsFactory


def test_users_of_redis_are_refused_in_another_database_than_0(settings_factory: SettingsFactory) -> None:
    settings = settings_factory(redis_url="redis://redis:6379/1", redis_manage_users=True)
    credentials = AgentCredentials(Mock(), Mock(), Mock(), settings)
    with pytest.raises(SettingsError, match="agents reach database 0 only; end DSF_REDIS_URL in /0"):
        credentials.begin(b"s" * 32)
