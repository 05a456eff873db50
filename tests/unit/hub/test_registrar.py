"""The hub's cache of records in Redis."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from dsf.hub.registrar import Registrar
from dsf.process.outage import Outage, StillAwayError
from dsf.store.schedule import ScheduleStore
from tests.support.memorystore import memory_client

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

    def away(_: ScheduleStore) -> dict[str, str]:
        reads.append(None)
        time.sleep(0.2)
        raise redis.TimeoutError("no answer")

    def error(_: int) -> type[Exception]:
        with pytest.raises(redis.RedisError) as raised:
            registrar.get_cluster("c1")
        return raised.type

    monkeypatch.setattr(ScheduleStore, "read_texts", away)
    with ThreadPoolExecutor(THREADS) as pool:
        errors = list(pool.map(error, range(THREADS)))
    assert sorted(errors, key=str) == sorted([redis.TimeoutError, *[StillAwayError] * (THREADS - 1)], key=str)
    assert len(reads) == 1
