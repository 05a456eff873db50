"""Entries and overrides in Redis, and the effect of writes on due times."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsf import keys
from dsf.errors import UnknownClusterError, UnknownScorerError
from dsf.store.entries import EffectiveSchedule, ScheduleOverride, apply_overrides, compute_next_tick_time, is_slot
from dsf.store.schedule import ScheduleStore
from tests.integration.beat.support import START, Bench, books, entry, pushed, register
from tests.support.redisserver import RedisServer


@pytest.fixture
def store(store_client: redis.Redis) -> ScheduleStore:
    return ScheduleStore(store_client, spread_rate=100)


def due(store: ScheduleStore, pair: str = "c1/s") -> float:
    return store.read_due_times([pair])[pair]


def take_wakeup(client: redis.Redis) -> bool:
    """Consume the wake-up signal of beat; True if there was one."""
    return client.delete(keys.BEAT_WAKE) == 1


def test_written_entries_are_read_back(store: ScheduleStore, store_client: redis.Redis) -> None:
    entries = [entry("c1"), entry("c2", "t", rate_limit="1/s", suspended=True, suspended_until=START)]
    assert store.upsert(entries, START) == 2
    assert store.read_entries() == entries
    assert store.read_entry("c2/t") == entries[1]
    assert store.read_entry("c3/t") is None
    assert store.read_due_times(["c1/s", "c3/t"]) == {"c1/s": START}
    store_client.hset(keys.ENTRIES, "c0/s", "{}")
    assert store.read_entries() == entries


def test_writing_the_same_again_changes_nothing(store: ScheduleStore, store_client: redis.Redis) -> None:
    assert store.upsert([entry("c1")], START) == 1
    assert take_wakeup(store_client)
    assert store.upsert([entry("c1")], START + 10) == 0
    assert due(store) == START
    assert not take_wakeup(store_client)


def test_first_runs_of_many_new_entries_are_spread(store: ScheduleStore) -> None:
    entries = [entry(f"c{n}", interval=600) for n in range(200)]
    # The runs are spread too if entries arrive in several calls, one scorer or cluster after the other.
    for start in range(0, 200, 50):
        store.upsert(entries[start : start + 50], START)
    times = [due(store, new_entry.pair) for new_entry in entries]
    assert times[0] == START
    early = [at for new_entry, at in zip(entries, times, strict=True) if not is_slot(new_entry.pair, 600, at)]
    assert len(early) > 180
    assert [round(at - START, 2) for at in early] == [round(n / 100, 2) for n in range(len(early))]


@pytest.mark.parametrize("text", ["abc", "", "nan", "inf", "-inf", "1e300", "0x", "\x00"])
def test_first_runs_ignore_a_value_that_is_not_a_time(
    store: ScheduleStore, store_client: redis.Redis, text: str
) -> None:
    """The Redis user of the page may write any value."""
    store_client.set(keys.FIRST_RUNS, text)
    store.upsert([entry("c1"), entry("c2")], START)
    assert max(due(store, "c1/s"), due(store, "c2/s")) < START + 60
    assert START <= float(store_client.get(keys.FIRST_RUNS) or 0) < START + 60


def test_first_run_is_not_later_than_the_first_slot(store_client: redis.Redis) -> None:
    store = ScheduleStore(store_client, spread_rate=1)
    entries = [entry(f"c{n}", interval=10) for n in range(500)]
    store.upsert(entries, START)
    assert all(
        START <= due(store, new_entry.pair) <= compute_next_tick_time(new_entry.pair, 10, START)
        for new_entry in entries
    )
    # Long after, a new entry is due at once again.
    store.upsert([entry("late")], START + 100)
    assert due(store, "late/s") == START + 100


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    old=st.integers(1, 4000),
    new=st.integers(1, 4000),
    elapsed=st.floats(0, 4000),
    overridden=st.one_of(st.none(), st.integers(1, 4000)),
)
def test_upsert_never_postpones_a_run(
    store: ScheduleStore, store_client: redis.Redis, old: int, new: int, elapsed: float, overridden: int | None
) -> None:
    store_client.flushall()
    store.upsert([entry("c1", interval=old)], START)
    if overridden:
        store_client.hset(keys.OVERRIDES, "c1/s", ScheduleOverride(interval=overridden).model_dump_json())
    store_client.zadd(keys.DUE, {"c1/s": compute_next_tick_time("c1/s", old, START)})
    before = due(store)
    store.upsert([entry("c1", interval=new, rate_limit="1/s")], START + elapsed)
    assert due(store) <= before
    assert due(store) <= compute_next_tick_time("c1/s", overridden or new, START + elapsed)


def test_frequent_updates_do_not_starve_a_pair(store_client: redis.Redis) -> None:
    bench = Bench(store_client)
    for second in range(100):
        bench.store.upsert([entry("c1", interval=10, rate_limit=f"{second + 1}/s")], bench.now)
        bench.run(1)
    assert 10 <= len(pushed(store_client, "c1")) <= 12


def test_missing_due_time_is_repaired(store: ScheduleStore, store_client: redis.Redis) -> None:
    store.upsert([entry("c1")], START)
    store_client.delete(keys.DUE)
    assert store.upsert([entry("c1")], START + 1000) == 1
    assert due(store) == START + 1000


def test_resumed_entry_is_due_at_once(store: ScheduleStore, store_client: redis.Redis) -> None:
    store.upsert([entry("c1", interval=3600, suspended=True)], START)
    store_client.zadd(keys.DUE, {"c1/s": START + 3000})
    store.upsert([entry("c1", interval=3600)], START + 10)
    assert due(store) == START + 10


def test_remove_keeps_overrides_only(store_client: redis.Redis) -> None:
    bench = Bench(store_client)
    register(store_client, ["c1", "c2"])
    bench.store.upsert([entry("c1"), entry("c1", "s2"), entry("c2")], START)
    bench.run(40)
    bench.store.set_override("c1/s", interval=7, now=bench.now)
    store_client.lpush(keys.history_key("c1", "s"), "{}")
    assert bench.store.remove(["c1/s", "c9/s"]) == 1
    assert [remaining_entry.pair for remaining_entry in bench.store.read_entries()] == ["c1/s2", "c2/s"]
    assert bench.store.read_due_times(["c1/s"]) == {}
    assert not books(store_client, "c1").hash_fields
    assert not store_client.hexists(keys.ROWS, "c1/s")
    assert store_client.exists(keys.history_key("c1", "s")) == 0
    open_runs = store_client.zrange(keys.OPEN_RUNS, 0, -1)
    assert open_runs
    assert not [run for run in open_runs if run.startswith("c1/s/")]
    assert [run for run in open_runs if run.startswith("c1/s2/")]
    assert set(bench.store.read_overrides()) == {"c1/s"}
    assert bench.store.remove([]) == 0


def test_removal_of_a_pair_reads_no_open_runs_of_other_clusters(
    store_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(store_client)
    register(store_client, ["c1", "c10", "c2"])
    bench.store.upsert([entry("c1"), entry("c1", "s2"), entry("c10"), entry("c2")], START)
    bench.run(40)
    scanned: list[str] = []
    scan = store_client.zscan_iter

    def recording_scan(*arguments: object, **options: object) -> Iterator[tuple[str, float]]:
        for member, score in scan(*arguments, **options):  # type: ignore[arg-type]
            scanned.append(str(member))
            yield member, score

    monkeypatch.setattr(store_client, "zscan_iter", recording_scan)
    bench.store.remove(["c1/s"])
    assert {run.rpartition("/")[0] for run in scanned} == {"c1/s", "c1/s2"}
    remaining_pairs = {str(run).rpartition("/")[0] for run in store_client.zrange(keys.OPEN_RUNS, 0, -1)}
    assert remaining_pairs == {"c1/s2", "c10/s", "c2/s"}


def test_overrides_of_a_deleted_scorer_are_forgotten(store: ScheduleStore, store_client: redis.Redis) -> None:
    register(store_client, ["c1"], ["s", "t"])
    for target in ("*/s", "c1/s", "*/t"):
        store.set_override(target, interval=5)
    assert store.forget("s") == 2
    assert store.forget("s") == 0
    assert set(store.read_overrides()) == {"*/t"}


def test_override_is_merged_into_the_existing_one(store: ScheduleStore, store_client: redis.Redis) -> None:
    register(store_client, ["c1"])
    store.set_override("c1/s", interval=5, note="too slow", by="ann", now=START)
    store.set_override("c1/s", paused=True, paused_until=START + 60, by="bob", now=START + 1)
    # The note belongs to the last change, which had none: ann's note was about an earlier one.
    expected = ScheduleOverride(interval=5, paused=True, paused_until=START + 60, note="", by="bob", at=START + 1)
    assert store.read_overrides() == {"c1/s": expected}
    assert store.set_override("c1/s", interval=9, now=START + 2).paused_until == START + 60
    assert store.set_override("c1/s", paused=True, now=START + 2).paused_until is None
    assert store.set_override("c1/s", paused=False, now=START + 3).interval == 9


def test_concurrent_overrides_of_two_people_are_both_kept(redis_server: RedisServer, redis_client: redis.Redis) -> None:
    register(redis_client, ["c1"])

    def change(**values: object) -> None:
        store = ScheduleStore(redis_server.client())
        for _ in range(30):
            store.set_override("c1/s", **values)  # type: ignore[arg-type]

    people = [threading.Thread(target=change, kwargs=values) for values in ({"interval": 7}, {"paused": True})]
    for person in people:
        person.start()
    for person in people:
        person.join()
    [override] = ScheduleStore(redis_client).read_overrides().values()
    assert (override.interval, override.paused) == (7, True)


@pytest.mark.parametrize("target", ["*/s", "c1/s"])
def test_due_times_follow_an_override(store: ScheduleStore, store_client: redis.Redis, target: str) -> None:
    register(store_client, ["c1"])
    store.upsert([entry("c1", interval=600), entry("c1", "other")], START)
    slot = compute_next_tick_time("c1/s", 600, START)
    store_client.zadd(keys.DUE, {"c1/s": slot})
    other = due(store, "c1/other")
    take_wakeup(store_client)

    store.set_override(target, interval=5, now=START)
    soon = compute_next_tick_time("c1/s", 5, START)
    assert due(store) == soon < slot
    assert take_wakeup(store_client)
    # The current score may expire before the first slot of a longer interval, so the due time stays.
    store.set_override(target, interval=3600, now=START)
    assert due(store) == pytest.approx(soon, abs=1e-5)
    assert store.reset(target, now=START)
    assert due(store) == pytest.approx(soon, abs=1e-5)
    store_client.zadd(keys.DUE, {"c1/s": slot})
    store.set_override(target, paused=True, now=START)
    store.set_override(target, paused=False, now=START + 1)
    assert due(store) == START + 1
    assert due(store, "c1/other") == other
    assert take_wakeup(store_client)
    assert store.reset(target)
    assert not store.reset(target)


def test_pair_with_its_own_override_ignores_the_override_of_the_scorer(
    store: ScheduleStore, store_client: redis.Redis
) -> None:
    register(store_client, ["c1", "c2"])
    store.upsert([entry("c1", interval=3600), entry("c2", interval=3600)], START - 3600)
    store.set_override("c1/s", interval=600, now=START)
    before = due(store)
    store.set_override("*/s", interval=5, now=START)
    assert due(store) == before
    assert due(store, "c2/s") <= START + 5
    overrides = store.read_overrides()
    assert apply_overrides(entry("c1"), overrides, START) == EffectiveSchedule(600, "c1/s", False, None, "entry")


def test_override_of_one_cluster_reads_no_other_overrides(
    store: ScheduleStore, store_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(store_client, ["c1", "c2"])
    store.upsert([entry("c1"), entry("c2")], START)
    store.set_override("*/s", interval=20, now=START)
    store.set_override("c2/s", interval=40, now=START)
    monkeypatch.setattr(store, "read_overrides", lambda: pytest.fail("all overrides are read"))
    store.set_override("c1/s", interval=50, paused=True, now=START)
    store.resume("c1/s", now=START)
    assert store.reset("c1/s", now=START)
    assert store.read_overrides_of("s", ["c1", "c2"]).keys() == {"*/s", "c2/s"}


def test_resume_removes_the_override(store: ScheduleStore, store_client: redis.Redis) -> None:
    register(store_client, ["c1"])
    store.upsert([entry("c1")], START)
    store.set_override("*/s", paused=True, now=START)
    store.resume("*/s", now=START + 1)
    assert store.read_overrides() == {}
    assert due(store) <= START + 1
    # A later suspension in the DynamicScorer takes effect.
    store.upsert([entry("c1", suspended=True)], START + 2)
    assert apply_overrides(store.read_entries()[0], store.read_overrides(), START + 3).paused


def test_resume_keeps_an_interval(store: ScheduleStore, store_client: redis.Redis) -> None:
    register(store_client, ["c1"])
    store.upsert([entry("c1")], START)
    store.set_override("c1/s", interval=9, paused=True, now=START)
    remaining_override = store.resume("c1/s", now=START + 1)
    assert (remaining_override.interval, remaining_override.paused) == (9, None)


@pytest.mark.parametrize("is_down", [False, True])
@pytest.mark.parametrize("by_scorer", [True, False])
def test_resume_overrules_every_other_pause(
    store: ScheduleStore, store_client: redis.Redis, by_scorer: bool, is_down: bool
) -> None:
    register(store_client, ["c1"])
    held_entry = entry("c1", suspended=not by_scorer)
    store.upsert([held_entry.make_stopped() if is_down else held_entry], START)
    if by_scorer:
        store.set_override("*/s", paused=True, now=START)
    assert store.resume("c1/s", now=START + 1).paused is False
    # The pair is no longer held by its entry, and runs.
    store.upsert([held_entry], START + 1)
    assert not apply_overrides(store.read_entries()[0], store.read_overrides(), START + 2).paused


def test_due_times_of_many_resumed_pairs_are_spread(store: ScheduleStore, store_client: redis.Redis) -> None:
    clusters = [f"c{n}" for n in range(300)]
    register(store_client, clusters[:1])
    store.upsert([entry(cluster, interval=3600) for cluster in clusters], START - 10_000)
    store_client.zadd(
        keys.DUE, {f"{cluster}/s": compute_next_tick_time(f"{cluster}/s", 3600, START) for cluster in clusters}
    )
    store.set_override("*/s", paused=True, now=START)
    store.set_override("*/s", paused=False, now=START)
    times = sorted(store.read_due_times(f"{cluster}/s" for cluster in clusters).values())
    assert times[0] == START
    assert 2.8 <= times[-1] - START <= 3.0


def test_unknown_targets_are_refused_with_the_registered_ones(store: ScheduleStore, store_client: redis.Redis) -> None:
    register(store_client, ["c1"], ["s", "t"])
    with pytest.raises(UnknownScorerError, match="s, t"):
        store.set_override("*/nope", interval=5)
    with pytest.raises(UnknownClusterError, match="c1"):
        store.set_override("nope/s", paused=True)
    with pytest.raises(UnknownScorerError):
        store.reset("*/nope")
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        store.set_override("c1/s", interval=0)
    with pytest.raises(ValueError, match="less than or equal to 2147483647"):
        store.set_override("c1/s", interval=2**31)
    with pytest.raises(ValueError, match="no time"):
        store.set_override("c1/s", paused=True, paused_until=float("nan"))
    assert store.read_overrides() == {}


def test_controller_keeps_overrides(store: ScheduleStore, store_client: redis.Redis) -> None:
    register(store_client, ["c1"])
    store.upsert([entry("c1")], START)
    store.set_override("c1/s", interval=5, now=START)
    store.upsert([entry("c1", interval=60)], START)
    store.remove(["c1/s"])
    store.upsert([entry("c1", interval=90)], START)
    assert store.read_overrides()["c1/s"].interval == 5


def test_resume_of_all_keeps_nothing_for_a_pair_with_its_own_pause(
    store: ScheduleStore, store_client: redis.Redis
) -> None:
    register(store_client, ["c1", "c2"])
    store.upsert([entry("c1"), entry("c2")], START)
    store.set_override("c1/s", paused=True, now=START)
    store.set_override("*/s", paused=True, now=START)
    store.resume("*/s", now=START + 1)
    assert set(store.read_overrides()) == {"c1/s"}
    store.upsert([entry("c1", suspended=True), entry("c2", suspended=True)], START + 2)
    assert all(
        apply_overrides(stored_entry, store.read_overrides(), START + 3).paused for stored_entry in store.read_entries()
    )
