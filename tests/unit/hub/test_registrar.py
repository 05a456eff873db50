"""The hub's cache of records in Redis."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from dsf.hub.plan import make_plan
from dsf.hub.registrar import Registrar
from dsf.hub.scorerplan import PlanCache
from dsf.process.outage import KnownOutageError, Outage
from dsf.store.registry import Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from tests.support.memorystore import memory_client
from tests.unit.hub.builders import NOW, config, scorer

THREADS = 4


def test_concurrent_threads_share_one_read_of_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    registrar = Registrar(memory_client(), Outage("Redis"))
    reads: list[None] = []
    read_stored = ScheduleStore.read_texts

    def slow(store: ScheduleStore) -> dict[str, str]:
        reads.append(None)
        time.sleep(0.2)
        return read_stored(store)

    monkeypatch.setattr(ScheduleStore, "read_texts", slow)
    with ThreadPoolExecutor(THREADS) as pool:
        assert [record.key_ids for record in pool.map(registrar.get_cluster, ["c1"] * THREADS)] == [()] * THREADS
    assert len(reads) == 1


def test_single_thread_waits_for_unavailable_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    registrar = Registrar(memory_client(), Outage("Redis"))
    reads: list[None] = []

    def raise_connection_error(_: ScheduleStore) -> dict[str, str]:
        reads.append(None)
        time.sleep(0.2)
        raise redis.TimeoutError("no response")

    def error(_: int) -> type[Exception]:
        with pytest.raises(redis.RedisError) as raised:
            registrar.get_cluster("c1")
        return raised.type

    monkeypatch.setattr(ScheduleStore, "read_texts", raise_connection_error)
    with ThreadPoolExecutor(THREADS) as pool:
        errors = list(pool.map(error, range(THREADS)))
    assert sorted(errors, key=str) == sorted([redis.TimeoutError, *[KnownOutageError] * (THREADS - 1)], key=str)
    assert len(reads) == 1


def test_many_changed_scorers_are_written_in_few_round_trips(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads wait meanwhile, also for scorers of other namespaces."""
    registrar = Registrar(redis_client, Outage("Redis"))
    requests: list[object] = []
    execute = redis.Redis.execute_command

    def counted(client: redis.Redis, *arguments: object, **options: object) -> object:
        requests.append(arguments[0])
        return execute(client, *arguments, **options)

    for interval in (30, 60):
        plan = make_plan([scorer(f"s{number}", interval=interval) for number in range(1000)], config(), (), NOW)
        registrar.list_known_clusters()
        with monkeypatch.context() as patch:
            patch.setattr(redis.Redis, "execute_command", counted)
            requests.clear()
            assert registrar.sync_scorers(plan) == {}
        assert len(requests) < 20
        records = Registry(redis_client).read_scorers()
        assert {record.interval for record in records.values()} == {interval}
        assert len(records) == 1000


def test_unchanged_scorers_are_neither_copied_nor_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is held meanwhile, for which all clusters wait."""
    registrar, cache = Registrar(memory_client(), Outage("Redis")), PlanCache()
    scorers = {f"s{number}": scorer(f"s{number}") for number in range(50)}
    calls: list[str] = []
    copy, compare = ScorerRecord.model_copy, ScorerRecord.__eq__

    def copied(record: ScorerRecord, **options: Any) -> ScorerRecord:
        calls.append(f"copy {record.name}")
        return copy(record, **options)

    def compared(record: ScorerRecord, other: object) -> bool:
        calls.append(f"compare {record.name}")
        return compare(record, other)

    def sync() -> None:
        plan = make_plan(scorers.values(), config(), (), NOW, cache=cache)
        with monkeypatch.context() as patch:
            patch.setattr(ScorerRecord, "model_copy", copied)
            patch.setattr(ScorerRecord, "__eq__", compared)
            assert registrar.sync_scorers(plan) == {}

    sync()
    # Redis' own copies of the records are compared once.
    registrar.refresh()
    sync()
    calls.clear()
    scorers["s7"] = scorer("s7", interval=60)
    sync()
    assert {call.partition(" ")[2] for call in calls} == {"s7"}
