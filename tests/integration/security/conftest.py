"""Fixtures: a certificate authority, and a Redis as in production."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.secureredis import SecureRedis
from tests.support.tlsca import TestCa


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> TestCa:
    """The authority that everybody trusts."""
    return TestCa(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def shared_redis(ca: TestCa) -> Iterator[SecureRedis]:
    """A server for each test module."""
    with SecureRedis(ca) as server:
        yield server


@pytest.fixture
def secure_redis(shared_redis: SecureRedis) -> SecureRedis:
    """The shared server, emptied, without users of clusters and with an empty ACL LOG."""
    admin = shared_redis.client()
    admin.flushall()
    for name in admin.acl_users():
        if str(name).startswith("spoke-"):
            admin.acl_deluser(str(name))
    admin.acl_log_reset()
    return shared_redis
