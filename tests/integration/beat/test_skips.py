"""Ticks that beat skips: the pair has their number, start and reason until one is sent."""

from __future__ import annotations

import pytest
import redis

from dsf import keys
from dsf.fleet.queries import FleetQueries
from dsf.fleet.snapshot import iter_rows
from dsf.store.pairs import Pairs
from dsf.store.ticks import Skips
from tests.integration.beat.support import START, Bench, books, entry, pushed, register

#: A minute of ticks before a test changes anything, whatever the slots of its pairs.
BEGUN = START + 60


@pytest.fixture
def begun(redis_client: redis.Redis) -> Bench:
    """A pair that has run for a minute."""
    register(redis_client, ["c1"])
    started_bench = Bench(redis_client, queue_limit=100)
    started_bench.store.upsert([entry("c1", interval=10)], started_bench.now)
    started_bench.run(60)
    return started_bench


def test_pair_with_sent_ticks_has_no_skips(begun: Bench) -> None:
    state = books(begun.client, "c1")
    assert state.scheduled >= 6
    assert state.skips is None


def test_pause_is_the_skip_reason_until_a_tick_is_sent(begun: Bench) -> None:
    begun.store.set_override("c1/s", paused=True, now=begun.now)
    begun.run(10)
    first = books(begun.client, "c1").skips
    assert first is not None
    assert (first.reason, first.ticks) == ("paused", 1)
    assert BEGUN <= first.first_at <= begun.now
    begun.run(50)
    skips = books(begun.client, "c1").skips
    assert skips is not None
    assert skips == Skips("c1", "paused", 6, first.first_at, skips.newest_at)
    # Ten seconds apart.
    assert begun.now - 11 <= skips.newest_at <= begun.now
    assert books(begun.client, "c1").read_skip_counts() == {"paused": 6}
    begun.store.set_override("c1/s", paused=False, now=begun.now)
    begun.run(0.1)
    assert books(begun.client, "c1").skips is None
    # The counts stay, and the next pause starts a new period.
    assert books(begun.client, "c1").read_skip_counts() == {"paused": 6}
    begun.store.set_override("c1/s", paused=True, now=begun.now)
    paused_at = begun.now
    begun.run(35)
    skips = books(begun.client, "c1").skips
    assert skips is not None
    assert 2 <= skips.ticks <= 4
    assert books(begun.client, "c1").read_skip_counts() == {"paused": 6 + skips.ticks}
    # A pair that ran between its slots skips one that would follow too soon.
    assert int(paused_at) <= skips.first_at <= paused_at + 15


def test_skip_reason_follows_the_newest_cause(begun: Bench) -> None:
    begun.client.lpush(keys.spoke_queue("c1"), *["waiting"] * 100)
    begun.run(30)
    queue_full = books(begun.client, "c1").skips
    assert queue_full is not None
    assert (queue_full.reason, queue_full.ticks) == ("queue_full", 3)
    begun.store.set_override("*/s", paused=True, now=begun.now)
    begun.run(10)
    paused = books(begun.client, "c1").skips
    assert paused is not None
    assert paused == Skips("c1", "paused", 4, queue_full.first_at, paused.newest_at)
    assert queue_full.newest_at < paused.newest_at <= begun.now
    begun.store.set_override("*/s", paused=False, now=begun.now)
    begun.run(10)
    newest = books(begun.client, "c1").skips
    assert newest is not None
    assert newest.reason == "queue_full"


def test_reader_sees_another_reason_of_the_second_skip(redis_client: redis.Redis) -> None:
    register(redis_client, ["c1"])
    bench = Bench(redis_client, queue_limit=1)
    redis_client.lpush(keys.spoke_queue("c1"), *["waiting"] * 100)
    bench.store.upsert([entry("c1", interval=10)], bench.now)
    reader = FleetQueries(redis_client, lambda: bench.now)
    while books(redis_client, "c1").skips is None:
        bench.run(1)
    assert [row.skips.reason for row in iter_rows(reader.rows()) if row.skips] == ["queue_full"]
    bench.now += 600
    bench.dispatcher.run()
    skips = books(redis_client, "c1").skips
    assert skips is not None
    assert (skips.reason, skips.ticks) == ("expired", 2)
    assert [row.skips.reason for row in iter_rows(reader.rows()) if row.skips] == ["expired"]


def test_rate_limit_shared_by_many_clusters_is_the_skip_reason(redis_client: redis.Redis) -> None:
    bench = Bench(redis_client)
    clusters = [f"c{n}" for n in range(12)]
    bench.store.upsert([entry(cluster, interval=10, rate_limit="2/m") for cluster in clusters], bench.now)
    bench.run(120)
    # Four or five of them had a turn, and the next one has its turn in 30 seconds.
    ticks_per_cluster = {cluster: len(pushed(redis_client, cluster)) for cluster in clusters}
    never = [cluster for cluster, number in ticks_per_cluster.items() if number == 0]
    assert len(never) >= 7
    for state in Pairs(redis_client).read_rows((cluster, "s") for cluster in never):
        skips = state.skips
        assert skips is not None
        assert skips == books(redis_client, state.cluster).skips
        assert skips.reason == "rate_limit"
        assert skips.ticks == books(redis_client, state.cluster).read_skip_counts()["rate_limit"] >= 10
        assert START <= skips.first_at <= START + 11
        assert "2/m, applies to all clusters together" in skips.explain("2/m")
    bench.run(600)
    for cluster in never:
        skips = books(redis_client, cluster).skips
        # Its turn resets the count.
        assert skips is None or skips.ticks < books(redis_client, cluster).read_skip_counts()["rate_limit"]


def test_stopped_beat_is_the_skip_reason_expired(begun: Bench) -> None:
    begun.now += 600
    begun.dispatcher.run()
    skips = books(begun.client, "c1").skips
    assert skips is not None
    assert (skips.reason, skips.ticks) == ("expired", 1)
    begun.run(20)
    assert books(begun.client, "c1").skips is None


def test_unknown_skip_record_of_a_newer_beat_is_ignored(redis_client: redis.Redis) -> None:
    redis_client.hset(keys.SKIPS, "c1/s", "3 1 5 moon")
    assert books(redis_client, "c1").skips is None
