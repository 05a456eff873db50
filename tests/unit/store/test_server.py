"""Checks of a Redis for the hub."""

from __future__ import annotations

import re

import pytest
import redis

from dsf import keys
from dsf.errors import SettingsError
from dsf.fleet.queries import FleetQueries
from dsf.store import server
from dsf.store.server import Owner

WHERE = "redis://redis:6379/0"
FIRST, SECOND = Owner(id="1", name="the hub of /a on x"), Owner(id="2", name="the hub of /b on y")


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"redis_version": "6.2.14"}, "Redis 6.2.14, and version 7.0 or later is needed"),
        ({"redis_version": "5.0.7-ubuntu"}, "Redis 5.0.7-ubuntu, and version 7.0"),
        ({"redis_version": "7.4.0", "redis_mode": "cluster"}, "part of a Redis Cluster"),
        ({"redis_version": "7.4.0", "cluster_enabled": 1}, "part of a Redis Cluster"),
    ],
)
def test_unusable_server_is_refused_with_the_remedy(info: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        server.check_server(info)


@pytest.mark.parametrize("version", ["7.0.0", "7.2.4", "8.0", "10.1.1", ""])
def test_usable_server_is_accepted(version: str) -> None:
    server.check_server({"redis_version": version, "redis_mode": "standalone", "cluster_enabled": 0})


@pytest.mark.parametrize(
    ("info", "kinds"),
    [
        ({"maxmemory_policy": "noeviction", "rdb_last_bgsave_status": "ok"}, []),
        ({"maxmemory_policy": "allkeys-lru"}, ["eviction"]),
        ({"maxmemory_policy": "volatile-ttl"}, ["eviction"]),
        ({"aof_last_write_status": "err"}, ["persistence"]),
        ({"rdb_last_bgsave_status": "err"}, ["persistence"]),
        ({}, []),
    ],
)
def test_server_problems_are_found(info: dict[str, object], kinds: list[str]) -> None:
    assert [*server.find_server_problems(info)] == kinds


def test_problems_replace_those_before_and_reach_readers(redis_client: redis.Redis) -> None:
    server.write_problems(redis_client, {"eviction": "set it to noeviction", "clock": "synchronise it"})
    problems = FleetQueries(redis_client).summary().problems
    assert [(problem.stage, problem.message) for problem in problems] == [
        ("clock", "synchronise it"),
        ("eviction", "set it to noeviction"),
    ]
    server.write_problems(redis_client, {"clock": "synchronise both"})
    assert server.read_problems(redis_client) == {"clock": "synchronise both"}
    server.write_problems(redis_client, {})
    assert FleetQueries(redis_client).summary().problems == []


def test_database_has_one_owner(redis_client: redis.Redis) -> None:
    server.claim_database(redis_client, FIRST, WHERE)
    server.claim_database(redis_client, FIRST, WHERE)
    with pytest.raises(SettingsError, match=r"redis://redis:6379/0 is in use by the hub of /a on x"):
        server.claim_database(redis_client, SECOND, WHERE)
    # The stop of another hub does not release the lock.
    server.release_database(redis_client, SECOND)
    assert 0 < redis_client.pttl(keys.OWNER) <= server.OWNER_LIFE
    server.release_database(redis_client, FIRST)
    server.claim_database(redis_client, SECOND, WHERE)


def test_release_leaves_the_claim_of_the_next_leader(redis_client: redis.Redis) -> None:
    leader, next_leader = (FIRST.model_copy(update={"instance": name}) for name in ("1", "2"))
    assert not server.claim_database(redis_client, leader, WHERE)
    assert server.claim_database(redis_client, next_leader, WHERE)
    server.release_database(redis_client, leader)
    assert not server.claim_database(redis_client, next_leader, WHERE)
    assert redis_client.exists(keys.OWNER)


def test_owner_that_cannot_be_read_is_replaced(redis_client: redis.Redis) -> None:
    redis_client.set(keys.OWNER, "{")
    server.claim_database(redis_client, FIRST, WHERE)
    with pytest.raises(SettingsError):
        server.claim_database(redis_client, SECOND, WHERE)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (redis.exceptions.NoPermissionError("User a has no permissions to run the 'evalsha' command"), "lacks a right"),
        (redis.ResponseError("DB index is out of range"), "does not have this database"),
        (redis.ResponseError("SELECT is not allowed in cluster mode"), "does not have this database"),
        (redis.ResponseError("unknown command 'EVALSHA', with args beginning with: 'ba'"), "the command EVALSHA"),
        (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"), ""),
        (redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"), ""),
        (redis.TimeoutError("Timeout connecting to server"), ""),
    ],
)
def test_refusals_that_waiting_does_not_end_are_described(error: redis.RedisError, words: str) -> None:
    text = server.describe_refusal(error)
    assert words in text
    assert bool(text) == bool(words)
