"""Gates that keep back a due tick: a full queue, a rate limit, a pause."""

from __future__ import annotations

import pytest
import redis

from dsf import keys
from tests.integration.beat.support import START, Bench, books, entry, pushed, register, run_times


def test_full_queue_gets_no_more_ticks(redis_client: redis.Redis) -> None:
    bench = Bench(redis_client, queue_limit=3)
    bench.store.upsert([entry("away", f"s{n}") for n in range(5)] + [entry("here", "s0")], bench.now)
    bench.now += 1
    bench.dispatcher.run()
    # Ticks of the batch itself count too.
    assert len(pushed(redis_client, "away")) == 3
    assert len(pushed(redis_client, "here")) == 1
    skipped = [books(redis_client, "away", f"s{n}").read_skip_counts() for n in range(5)]
    assert skipped.count({"queue_full": 1}) == 2


def test_absent_cluster_uses_no_rate(redis_client: redis.Redis) -> None:
    bench = Bench(redis_client, queue_limit=1)
    redis_client.lpush(keys.spoke_queue("away"), "waiting")
    bench.store.upsert(
        [entry("away", interval=2, rate_limit="1/s"), entry("here", interval=2, rate_limit="1/s")], START
    )
    for _ in range(40):
        bench.run(1)
        redis_client.delete(keys.spoke_queue("here"))
    assert books(redis_client, "here").read_skip_counts() == {}
    assert books(redis_client, "here").scheduled >= 20
    assert set(books(redis_client, "away").read_skip_counts()) == {"queue_full"}


def test_rate_limit_is_kept_and_shared_fairly(bench: Bench) -> None:
    clusters = [f"c{n}" for n in range(12)]
    bench.store.upsert([entry(cluster, interval=10, rate_limit="30/m") for cluster in clusters], bench.now)
    bench.run(600)
    ticks_per_cluster = {cluster: len(pushed(bench.client, cluster)) for cluster in clusters}
    # 1.2 runs a second are wanted, 0.5 are allowed.
    assert sum(ticks_per_cluster.values()) == pytest.approx(300, abs=3)
    assert max(ticks_per_cluster.values()) - min(ticks_per_cluster.values()) <= 1
    for cluster in clusters:
        state = books(bench.client, cluster)
        assert state.scheduled == ticks_per_cluster[cluster] + state.read_skip_counts()["rate_limit"]
        # Each slot has one outcome, give or take the first run.
        assert 60 <= state.scheduled <= 62


def test_rate_limit_survives_a_takeover(bench: Bench) -> None:
    clusters = [f"c{n}" for n in range(12)]
    bench.store.upsert([entry(cluster, interval=10, rate_limit="30/m") for cluster in clusters], bench.now)
    for _ in range(10):
        bench.run(60)
        bench.restart()
    ticks_per_cluster = {cluster: len(pushed(bench.client, cluster)) for cluster in clusters}
    assert sum(ticks_per_cluster.values()) == pytest.approx(300, abs=15)
    assert min(ticks_per_cluster.values()) >= 15


def test_pause_ends_by_resume_or_at_its_time(bench: Bench) -> None:
    register(bench.client, ["c1"])
    bench.store.upsert([entry("c1", interval=10)], bench.now)
    bench.run(25)
    ran = len(pushed(bench.client, "c1"))
    bench.store.set_override("*/s", paused=True, now=bench.now)
    bench.run(100)
    assert len(pushed(bench.client, "c1")) == ran
    assert books(bench.client, "c1").read_skip_counts() == {"paused": 10}
    bench.store.set_override("*/s", paused=False, now=bench.now)
    bench.run(0.1)
    assert len(pushed(bench.client, "c1")) == ran + 1
    pause_end = bench.now + 50
    bench.store.set_override("c1/s", paused=True, paused_until=pause_end, now=bench.now)
    bench.run(49)
    assert len(pushed(bench.client, "c1")) == ran + 1
    bench.run(12)
    assert len(pushed(bench.client, "c1")) >= ran + 2
    assert run_times(bench, "c1")[ran + 1] >= pause_end


def test_namespace_with_many_due_ticks_leaves_the_queue_to_others(redis_client: redis.Redis) -> None:
    bench = Bench(redis_client, queue_limit=16)
    greedy_entries = [entry("c", f"a{n:02}", namespace="team-a") for n in range(40)]
    # Due after the greedy ones in each round.
    other_entries = [entry("c", "own"), entry("c", "tenant", namespace="team-b")]
    bench.store.upsert([*greedy_entries, *other_entries], START)
    due_times = {keys.pair("c", f"a{n:02}"): START for n in range(40)}
    due_times |= {keys.pair("c", name): START + 0.5 for name in ("own", "tenant")}
    redis_client.zadd(keys.DUE, due_times)
    bench.now += 1
    bench.dispatcher.run()
    first = [scorer for scorer, _ in pushed(redis_client, "c")]
    assert first[-2:] == ["own", "tenant"]
    assert len(first) < 16
    # Its ticks still wait in the queue: it gets no more, also without others that are due.
    redis_client.zadd(keys.DUE, {keys.pair("c", f"a{n:02}"): bench.now for n in range(40)})
    bench.now += 0.5
    bench.dispatcher.run()
    assert len(pushed(redis_client, "c")) < 16
    # The agent takes the oldest ones first.
    for _ in range(len(first) - 1):
        redis_client.rpop(keys.spoke_queue("c"))
    redis_client.zadd(keys.DUE, {keys.pair("c", f"a{n:02}"): bench.now for n in range(40)})
    bench.now += 0.5
    bench.dispatcher.run()
    assert len(pushed(redis_client, "c")) > 3


def test_namespace_alone_on_a_cluster_has_the_whole_queue(redis_client: redis.Redis) -> None:
    bench = Bench(redis_client, queue_limit=10)
    bench.store.upsert([entry("c", f"a{n:02}", namespace="team-a") for n in range(20)], START)
    redis_client.zadd(keys.DUE, {keys.pair("c", f"a{n:02}"): START for n in range(20)})
    bench.now += 1
    bench.dispatcher.run()
    assert len(pushed(redis_client, "c")) == 10
