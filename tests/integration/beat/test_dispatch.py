"""Beat's batches against a real Redis: exactly one outcome for every due pair."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import redis

from dsf import keys
from dsf.beat.dispatch import Dispatcher
from dsf.messages import run_time
from dsf.store.clockguard import ScheduleGuard
from dsf.store.entries import is_slot
from dsf.store.ticks import RUN_SLACK
from tests.integration.beat.support import START, Bench, books, entry, pushed, register, run_times
from tests.support.redisserver import RedisServer


def test_new_entry_runs_at_once_and_then_in_its_slots(bench: Bench) -> None:
    bench.store.upsert([entry("c1")], bench.now)
    bench.run(300)
    first, second, *later_runs = run_times(bench, "c1")
    assert first == START
    assert second - first >= 15 - 0.01
    assert all(is_slot("c1/s", 30, at) for at in (second, *later_runs))
    assert [round(later - earlier, 3) for earlier, later in zip([second, *later_runs], later_runs, strict=False)] == [
        30.0
    ] * len(later_runs)
    assert len(later_runs) >= 7


def test_run_is_opened_with_a_deadline_after_its_expiry(bench: Bench) -> None:
    bench.store.upsert([entry("c1", interval=20)], bench.now)
    bench.dispatcher.run()
    [(_, run)] = pushed(bench.client, "c1")
    assert bench.client.zscore(keys.OPEN_RUNS, f"c1/s/{run}") == START + 20 + RUN_SLACK
    assert books(bench.client, "c1").scheduled == 1
    assert books(bench.client, "c1").open == 1


def test_late_tick_does_not_shift_the_slots(bench: Bench) -> None:
    bench.store.upsert([entry("c1", interval=10)], bench.now)
    for _ in range(20):
        bench.run(1.7)
        bench.now += 2.3  # Beat was busy with something else.
    bench.run(30)
    times = run_times(bench, "c1")[1:]
    assert all(is_slot("c1/s", 10, at) for at in times)
    assert times == sorted(set(times))
    assert times[-1] - times[0] == pytest.approx(10 * (len(times) - 1))


def test_missed_slots_are_not_caught_up_and_late_pairs_are_spread(redis_client: redis.Redis) -> None:
    bench = Bench(redis_client, spread_rate=10)
    clusters = [f"c{n}" for n in range(60)]
    bench.store.upsert([entry(cluster, interval=10) for cluster in clusters], bench.now)
    bench.run(30)
    before = {cluster: len(pushed(bench.client, cluster)) for cluster in clusters}
    bench.now += 3600  # Redis was unavailable.
    redis_back_at = bench.now
    bench.run(1)
    at_once = sum(len(pushed(bench.client, cluster)) - before[cluster] for cluster in clusters)
    # 10 late pairs per second, plus the pairs whose own slot falls in this second.
    assert 10 <= at_once <= 30
    bench.run(9.1)
    for cluster in clusters:
        state = books(bench.client, cluster)
        assert state.read_skip_counts() == {"expired": 1}
        new = run_times(bench, cluster)[before[cluster] :]
        assert 1 <= len(new) <= 2
        assert all(at >= redis_back_at - 0.001 for at in new)


@pytest.mark.parametrize("restart", [True, False])
def test_pairs_do_not_wait_for_the_time_of_a_clock_that_was_set_back(redis_client: redis.Redis, restart: bool) -> None:
    bench = Bench(redis_client, batch=10)
    frequent, daily = [f"c{n}" for n in range(24)], [f"d{n}" for n in range(24)]
    bench.store.upsert([entry(name) for name in frequent], bench.now)
    bench.store.upsert([entry(name, interval=86_400) for name in daily], bench.now)
    bench.run(120)
    due = {name: redis_client.zscore(keys.DUE, f"{name}/s") for name in daily}
    bench.now += 7200
    bench.run(60)
    bench.now -= 7200
    ScheduleGuard(redis_client).repair(bench.now)
    if restart:
        bench.restart()
    before = {name: len(pushed(redis_client, name)) for name in frequent}
    bench.run(100)
    assert {name for name in frequent if len(pushed(redis_client, name)) < before[name] + 2} == set()
    # Due times far in the future are valid and stay.
    assert {name: redis_client.zscore(keys.DUE, f"{name}/s") for name in daily} == due


def test_counters_are_exact_under_every_skip_reason(redis_client: redis.Redis) -> None:
    bench = Bench(redis_client, queue_limit=7, batch=10)
    clusters = [f"c{n}" for n in range(8)]
    register(redis_client, clusters, ("plain", "slow", "limited", "off"))
    bench.store.upsert(
        [
            entry(
                cluster, scorer, interval, rate_limit="1/s" if scorer == "limited" else None, suspended=scorer == "off"
            )
            for cluster in clusters
            for scorer, interval in (("plain", 3), ("slow", 11), ("limited", 5), ("off", 4))
        ],
        bench.now,
    )
    for _ in range(30):
        bench.run(5)
        # Agents of clusters with odd numbers are away, the others take everything.
        for cluster in clusters[::2]:
            for scorer, _ in pushed(redis_client, cluster):
                redis_client.hincrby("taken", f"{cluster}/{scorer}", 1)
            redis_client.delete(keys.spoke_queue(cluster))
    reasons: Counter[str] = Counter()
    total = 0
    for cluster in clusters:
        waiting = Counter(scorer for scorer, _ in pushed(redis_client, cluster))
        assert sum(waiting.values()) <= 7
        for scorer in ("plain", "slow", "limited", "off"):
            state = books(redis_client, cluster, scorer)
            ticks_sent = waiting[scorer] + int(redis_client.hget("taken", f"{cluster}/{scorer}") or 0)
            assert state.scheduled == ticks_sent + state.count("skipped"), (cluster, scorer)
            assert state.open == ticks_sent
            reasons += Counter(state.read_skip_counts())
            total += ticks_sent
    assert set(reasons) == {"queue_full", "rate_limit", "paused"}
    stats = redis_client.hgetall(keys.BEAT_STATS)
    assert int(stats["ticks"]) == int(stats["lag:count"]) == total == redis_client.zcard(keys.OPEN_RUNS)
    assert {name: int(n) for name, n in stats.items() if name.startswith("skipped:")} == {
        f"skipped:{reason}": n for reason, n in reasons.items()
    }


def test_beats_that_ignore_the_lock_send_every_tick_once(redis_server: RedisServer, redis_client: redis.Redis) -> None:
    pairs = [(f"c{n}", scorer) for n in range(40) for scorer in ("a", "b")]
    bench = Bench(redis_client)
    bench.store.upsert([entry(cluster, scorer, 1) for cluster, scorer in pairs], bench.now)

    def advance_clock() -> None:
        bench.now += 0.05

    # All beats check the same moments, however slow one is, so no beat falls behind and skips a slot as missed.
    barrier = threading.Barrier(3, advance_clock)

    def beat() -> None:
        client = redis_server.client()
        dispatcher = Dispatcher(client, batch=50, queue_limit=1000, spread_rate=100, clock=lambda: bench.now)
        try:
            for _ in range(100):
                barrier.wait()
                # The first beat continues with the rest while the others still check the entries that it took.
                dispatcher.run()
                dispatcher.run()
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(beat) for _ in range(3)]:
            future.result()
    total = 0
    for cluster, scorer in pairs:
        times = sorted(run_time(run) for name, run in pushed(redis_client, cluster) if name == scorer)
        first, *later_intervals = [round(after - before, 2) for before, after in pairwise(times)]
        # The second run is 0.5 to 1.5 intervals after the first; later ones are one interval apart.
        assert 0.49 <= first <= 1.51
        assert later_intervals == [1.0] * len(later_intervals)
        assert times[-1] > bench.now - 1.1
        state = books(redis_client, cluster, scorer)
        assert state.scheduled == len(times)
        assert state.read_skip_counts() == {}
        total += len(times)
    assert total >= 4 * len(pairs)
    assert redis_client.zcard(keys.OPEN_RUNS) == total


def test_due_time_without_an_entry_is_dropped(bench: Bench) -> None:
    bench.client.zadd(keys.DUE, {"gone/s": START - 1})
    bench.store.upsert([entry("c1")], bench.now)
    bench.dispatcher.run()
    assert bench.client.zrange(keys.DUE, 0, -1) == ["c1/s"]
    assert not books(bench.client, "gone").hash_fields


@pytest.mark.parametrize("pair", ["c1/s", 'c"1/s', "no-slash"])
def test_unreadable_entry_does_not_stop_others(bench: Bench, pair: str) -> None:
    text = entry("c1").model_dump_json() if pair != "c1/s" else '{"v": 99}'
    bench.client.hset(keys.ENTRIES, pair, text)
    bench.client.zadd(keys.DUE, {pair: START - 1})
    bench.store.upsert([entry("c2")], bench.now)
    bench.dispatcher.run()
    assert len(pushed(bench.client, "c2")) == 1
    assert bench.client.zscore(keys.DUE, pair) == START + 60
    assert bench.client.keys("dsf:pair:*") == ["dsf:pair:c2/s"]


@pytest.mark.parametrize("corrupt_key", [keys.pair_key("c2", "s"), keys.spoke_queue("c2")])
def test_pair_with_corrupt_data_does_not_stop_other_pairs(bench: Bench, corrupt_key: str) -> None:
    """Ticks of the other pairs are sent, each exactly once."""
    clusters = ("c1", "c2", "c3")
    bench.store.upsert([entry(name) for name in clusters], bench.now)
    bench.client.set(corrupt_key, "of another type")
    bench.run(120)
    for name in ("c1", "c3"):
        runs = [run for _, run in pushed(bench.client, name)]
        assert len(runs) == len(set(runs)) == books(bench.client, name).scheduled
        assert len(runs) in range(4, 7)
    assert not [run for run in bench.client.zrange(keys.OPEN_RUNS, 0, -1) if run.startswith("c2/")]
    if corrupt_key == keys.spoke_queue("c2"):
        skipped = books(bench.client, "c2").read_skip_counts()
        assert skipped == {"queue_full": books(bench.client, "c2").scheduled}


def test_unreadable_override_is_ignored(bench: Bench) -> None:
    bench.store.upsert([entry("c1")], bench.now)
    bench.client.hset(keys.OVERRIDES, "c1/s", "nonsense")
    bench.dispatcher.run()
    assert len(pushed(bench.client, "c1")) == 1


def test_flushed_scripts_are_loaded_again(bench: Bench) -> None:
    bench.store.upsert([entry("c1", interval=5)], bench.now)
    bench.run(6)
    bench.client.script_flush()
    bench.run(20)
    assert len(pushed(bench.client, "c1")) >= 4


@pytest.mark.parametrize("change", ["override", "upsert"])
def test_schedule_change_between_read_and_commit_wins(
    bench: Bench, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(bench.client, ["c1"])
    bench.store.upsert([entry("c1", interval=3600)], bench.now)
    read = bench.dispatcher._read_batch

    def read_then_change(*args: object) -> object:
        batch = read(*args)  # type: ignore[arg-type]
        monkeypatch.undo()
        if change == "override":
            bench.store.set_override("c1/s", interval=5, now=bench.now)
        else:
            bench.store.upsert([entry("c1", interval=5)], bench.now)
        return batch

    monkeypatch.setattr(bench.dispatcher, "_read_batch", read_then_change)
    bench.run(60)
    times = run_times(bench, "c1")
    # The change makes the pair due at once, and then at the new interval.
    assert len([at for at in times if at < START + 2]) == 1
    assert 11 <= len(times) <= 13


def test_lag_is_counted_in_buckets(bench: Bench) -> None:
    bench.store.upsert([entry("c1", interval=1000)], bench.now)
    bench.now += 0.2
    bench.dispatcher.run()
    bench.store.upsert([entry("c2", interval=1000)], bench.now)
    bench.now += 90
    bench.dispatcher.run()
    stats = bench.client.hgetall(keys.BEAT_STATS)
    assert (stats["lag:0.25"], stats["lag:+Inf"], stats["lag:count"]) == ("1", "1", "2")
    assert float(stats["lag:sum"]) == pytest.approx(90.2)
