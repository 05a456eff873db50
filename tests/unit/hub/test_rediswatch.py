"""The claim of a hub controller on its database, while copies of the hub exist."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
import redis

from dsf import keys
from dsf.errors import SettingsError
from dsf.hub.rediswatch import RedisWatch
from dsf.process.hubclock import HubClock
from dsf.process.outage import Outage
from dsf.settings import Settings
from dsf.store import server

SECRET = bytes(32)


class Watch(RedisWatch):
    """A watch without its thread; the test runs its checks."""

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self.errors: list[SettingsError] = []
        super().__init__(client, settings, HubClock(client), Outage("redis"), self.errors.append)
        self._thread.start = lambda: None  # type: ignore[method-assign]
        self.start(SECRET)

    def check(self) -> None:
        self._next_server_check = 0.0
        self._check()


@pytest.fixture
def watch(redis_client: redis.Redis, settings_factory: Callable[..., Settings]) -> Callable[[], Watch]:
    return lambda: Watch(redis_client, settings_factory())


def test_two_hubs_of_the_same_secret_and_namespace_are_reported(watch: Callable[[], Watch]) -> None:
    """A restored backup runs beside the original hub: each removes entries of the other one."""
    first, second = watch(), watch()
    for _ in range(3):
        first.check()
        second.check()
    for hub in (first, second):
        assert "in use by a copy of this hub" in str(hub.errors[0])


def test_reported_problem_stays_until_it_is_solved(watch: Callable[[], Watch], redis_client: redis.Redis) -> None:
    hub = watch()
    hub.report(server.CRDS, "the CRDs lack a field")
    hub.check()
    hub.check()
    assert server.read_problems(redis_client) == {server.CRDS: "the CRDs lack a field"}
    hub.report(server.CRDS, "")
    hub.check()
    assert server.read_problems(redis_client) == {}


@pytest.mark.parametrize(
    ("rights", "database", "words"),
    [
        ("+ping +client +hello", 0, "lacks a right that the hub needs"),
        ("+@all", 999, "does not have this database"),
    ],
)
def test_hub_does_not_start_on_a_redis_that_refuses_it(
    rights: str,
    database: int,
    words: str,
    redis_client: redis.Redis,
    redis_url: str,
    settings_factory: Callable[..., Settings],
) -> None:
    redis_client.execute_command("ACL", "SETUSER", "weak", "reset", "on", ">weak-password", "~*", "&*", *rights.split())
    address = f"{urlsplit(redis_url).hostname}:{urlsplit(redis_url).port}"
    client = redis.Redis.from_url(f"redis://weak:weak-password@{address}/{database}", protocol=2)
    try:
        with pytest.raises(SettingsError, match=words):
            Watch(client, settings_factory())
    finally:
        redis_client.execute_command("ACL", "DELUSER", "weak")
        client.close()


def test_next_leader_takes_the_database_over(watch: Callable[[], Watch]) -> None:
    leader = watch()
    leader.check()
    next_leader = watch()
    leader._stopping.set()
    for _ in range(3):
        next_leader.check()
    assert not next_leader.errors


def test_claim_of_a_restored_redis_is_replaced(watch: Callable[[], Watch], redis_client: redis.Redis) -> None:
    watch()
    dump = redis_client.dump(keys.OWNER)
    leader = watch()
    leader.check()
    assert dump is not None
    redis_client.restore(keys.OWNER, 100_000, dump, replace=True)
    for _ in range(3):
        leader.check()
    assert not leader.errors
