"""Fixtures: a certificate authority, a Redis as in production, and the whole framework on one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.security.fleet import Fleet
from tests.support.secureredis import SecureRedis
from tests.support.tlsca import TestCa


@pytest.fixture(scope="session")
def ca(tmp_path_factory: pytest.TempPathFactory) -> TestCa:
    """The authority that everybody trusts."""
    return TestCa(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def shared_redis(ca: TestCa) -> Iterator[SecureRedis]:
    """One server per test module."""
    with SecureRedis(ca) as server:
        yield server


@pytest.fixture
def secure_redis(shared_redis: SecureRedis) -> SecureRedis:
    """That server, empty, without users of clusters and with an empty ACL LOG."""
    admin = shared_redis.client()
    admin.flushall()
    for name in admin.acl_users():
        if str(name).startswith("spoke-"):
            admin.acl_deluser(str(name))
    admin.acl_log_reset()
    return shared_redis


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Everything, running. Every method of authentication is for those who hunt for what they leave behind."""
    every_method = request.path.stem == "test_canary"
    with Fleet(tmp_path_factory.mktemp("fleet"), every_method=every_method) as running:
        yield running
