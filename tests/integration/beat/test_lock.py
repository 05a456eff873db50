"""Beat's lock with a Redis that does not execute its commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from structlog.testing import capture_logs

from dsf import keys
from dsf.beat_schedule import BeatLock
from dsf.store.client import connect
from tests.support.fixtures import SettingsFactory
from tests.support.forwarder import Forwarder
from tests.support.redisserver import RedisServer


@pytest.fixture
def full(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    """A Redis that accepts no further commands."""
    redis_client.config_set("maxmemory", "1")
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        redis_client.set("x", "y")
    yield redis_client
    redis_client.config_set("maxmemory", "0")


def test_full_redis_grants_the_lock_to_a_starting_beat(full: redis.Redis) -> None:
    lock, other = BeatLock(full, 60), BeatLock(full, 60)
    assert (lock.ensure(), other.ensure()) == (True, False)
    # The other beat must not release a lock that it does not hold.
    other.release()
    assert not other.ensure()
    lock.release()
    assert other.ensure()
    # The first one's lock expired while it was suspended.
    full.delete(keys.BEAT_LOCK)
    other._renew_at = 0.0
    with capture_logs() as logged:
        assert other.ensure()
    assert [line["event"] for line in logged] == ["beat lost its lock"]
    other.release()
    assert not full.exists(keys.BEAT_LOCK)


def test_lock_with_our_token_is_held_despite_a_lost_response(redis_client: redis.Redis) -> None:
    lock = BeatLock(redis_client, 60)
    assert lock.ensure()
    # As if the response was lost.
    lock._is_held = False
    with capture_logs() as logged:
        assert lock.ensure()
    assert not logged


def test_oversized_lock_lifetime_is_shortened(redis_client: redis.Redis) -> None:
    """The time of Redis went backwards, so that more is left of the lock's life than it has."""
    dead, lock = BeatLock(redis_client, 10), BeatLock(redis_client, 10)
    assert dead.ensure()
    redis_client.expire(keys.BEAT_LOCK, 7200)
    assert not lock.ensure()
    assert 0 < redis_client.ttl(keys.BEAT_LOCK) <= 10


def test_beat_leaves_a_redis_that_has_become_a_replica(settings_factory: SettingsFactory) -> None:
    with RedisServer() as first, RedisServer() as second, Forwarder(first.port) as address:
        client = connect(settings_factory(redis_url=address.url), retries=0)
        lock = BeatLock(client, 60)
        assert lock.ensure()
        first.client().replicaof("127.0.0.1", second.port)
        lock._renew_at = 0.0
        with capture_logs() as logged, pytest.raises(redis.ConnectionError, match="is a replica"):
            lock.ensure()
        # Whether it lost the lock is not known yet.
        assert not logged
        address.target = second.port
        assert lock.ensure()
        assert second.client().get(keys.BEAT_LOCK) == lock._token
        client.close()
