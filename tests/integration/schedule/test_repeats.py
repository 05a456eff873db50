"""Ticks whose delivery an end of Redis may have cut off come once more."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
import redis

from dsf import keys
from dsf.beat_schedule import BeatScheduler
from dsf.celery import make_app
from dsf.schedule import repeats
from dsf.schedule.repeats import Repeats, Tick
from tests.conftest import SettingsFactory
from tests.integration.schedule.support import Bench, books, entry, pushed
from tests.support.redisserver import RedisServer

CLUSTERS = ("c1", "c2", "c3")


def _again(bench: Bench) -> None:
    """Redis is lost, and comes back."""
    bench.dispatcher.repeats.cut_off()
    bench.dispatcher.repeats.send()


def test_what_was_popped_and_has_not_ended_comes_again(bench: Bench) -> None:
    bench.store.upsert([entry(cluster) for cluster in CLUSTERS], bench.now)
    bench.run(1)
    sent = {cluster: pushed(bench.client, cluster) for cluster in CLUSTERS}
    # The first was popped, the second has ended, the third still waits.
    bench.client.rpop(keys.spoke_queue("c1"))
    bench.client.rpop(keys.spoke_queue("c2"))
    [(_, run)] = sent["c2"]
    assert bench.client.zrem(keys.OPEN_RUNS, keys.run_member("c2", "s", run)) == 1
    before = bench.client.zrange(keys.OPEN_RUNS, 0, -1, withscores=True)
    _again(bench)
    assert {cluster: pushed(bench.client, cluster) for cluster in CLUSTERS} == {**sent, "c2": []}
    # The same run: nothing more is in the books.
    assert bench.client.zrange(keys.OPEN_RUNS, 0, -1, withscores=True) == before
    assert [books(bench.client, cluster).scheduled for cluster in CLUSTERS] == [1, 1, 1]
    # Once only.
    bench.client.rpop(keys.spoke_queue("c1"))
    bench.dispatcher.repeats.send()
    assert pushed(bench.client, "c1") == []


def test_only_the_last_seconds_are_in_doubt(redis_client: redis.Redis) -> None:
    now = 100.0
    found = Repeats(redis_client, lambda: now)
    for number in range(8):
        now = 100.0 + number
        found.send()
        found.note([Tick(keys.spoke_queue("c1"), f"c1/s/{number}", f"message {number}")])
        redis_client.zadd(keys.OPEN_RUNS, {f"c1/s/{number}": 1.0})
    # A Redis that is silent is noticed late, and may be away for long.
    now += 1000
    found.cut_off()
    now += 1000
    found.send()
    assert redis_client.lrange(keys.spoke_queue("c1"), 0, -1) == ["message 7", "message 6", "message 5"]
    # It ends again at once: these are in doubt once more, and an agent has taken one of them.
    redis_client.rpop(keys.spoke_queue("c1"))
    found.cut_off()
    found.send()
    assert redis_client.lrange(keys.spoke_queue("c1"), 0, -1) == ["message 5", "message 7", "message 6"]


def test_beat_goes_on_without_the_right_to_repeat(redis_server: RedisServer, redis_client: redis.Redis) -> None:
    """Its users are of an ACL file of an earlier version."""
    redis_client.acl_setuser("old", enabled=True, nopass=True, keys=["*"], categories=["+@all"], commands=["-lpos"])
    client = redis.Redis.from_url(redis_server.url, username="old", password="x", decode_responses=True)
    with contextlib.closing(client):
        found = Repeats(client)
        client.zadd(keys.OPEN_RUNS, {"c1/s/1": 1.0})
        for _ in range(2):
            found.note([Tick(keys.spoke_queue("c1"), "c1/s/1", "message")])
            found.cut_off()
            found.send()
            found.send()
    assert redis_client.lrange(keys.spoke_queue("c1"), 0, -1) == []


def test_they_wait_while_redis_is_away() -> None:
    with RedisServer(aof=True) as server:
        client = server.client()
        client.zadd(keys.OPEN_RUNS, {"c1/s/1": 1.0})
        found = Repeats(client)
        found.note([Tick(keys.spoke_queue("c1"), "c1/s/1", "message")])
        found.cut_off()
        server.kill()
        with pytest.raises(redis.ConnectionError):
            found.send()
        server.restart()
        found.send()
        assert client.lrange(keys.spoke_queue("c1"), 0, -1) == ["message"]


@contextlib.contextmanager
def _beat(url: str, make: SettingsFactory) -> Iterator[BeatScheduler]:
    settings = make(role="beat", redis_url=url, beat_max_wait=0.2)
    app = make_app(settings)
    scheduler = BeatScheduler(app, config=settings)
    try:
        yield scheduler
    finally:
        scheduler.close()
        app.close()


def test_beat_sends_them_after_a_restart_of_redis(
    settings_factory: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the machine takes to end Redis.
    monkeypatch.setattr(repeats, "_KEPT", 600.0)
    with RedisServer(aof=True) as server, _beat(server.url, settings_factory) as scheduler:
        client = server.client()
        bench = Bench(client)
        bench.store.upsert([entry("c1", interval=3600)], time.time())
        while not (sent := pushed(client, "c1")):
            scheduler.tick()
        for is_noticed in (True, False):
            # An agent whose answer was never sent.
            assert client.rpop(keys.spoke_queue("c1")) is not None
            server.kill()
            if is_noticed:
                scheduler.tick()
            server.restart()
            while not pushed(client, "c1"):
                scheduler.tick()
            assert pushed(client, "c1") == sent
        assert (books(client, "c1").scheduled, books(client, "c1").open) == (1, 1)
