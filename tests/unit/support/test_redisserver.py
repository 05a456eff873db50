"""The test server keeps its port and data after a kill."""

from __future__ import annotations

import pytest
import redis

from tests.support.redisserver import RedisServer


def test_killed_server_restarts_with_its_data() -> None:
    with RedisServer(aof=True) as server:
        client = server.client()
        client.set("kept", "yes")
        server.kill()
        server.restart()
        assert client.get("kept") == "yes"


def test_restart_uses_the_same_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer Redis may be installed meanwhile, whose data the old version cannot read."""
    with RedisServer(aof=True) as server:
        client = server.client()
        client.set("kept", "yes")
        monkeypatch.setenv("DSF_TEST_REDIS_SERVER", "/bin/false")
        server.restart()
        assert client.get("kept") == "yes"


def test_fixtures_give_an_empty_database(redis_client: redis.Redis, redis_url: str, settings_factory) -> None:
    assert redis_client.dbsize() == 0
    assert settings_factory(redis_url=redis_url).resolved_redis_url() == redis_url
