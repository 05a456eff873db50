"""A real Celery worker takes beat's ticks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from dsf.messages import new_run_id
from dsf.store.schedule import ScheduleStore
from dsf.store.ticks import TickFactory, send_now
from tests.integration.schedule.processes import celery
from tests.integration.schedule.support import SEEN, entry
from tests.support.wait import wait_for


@pytest.fixture
def worker(redis_url: str) -> Iterator[None]:
    arguments = (
        "worker",
        "-Q",
        "spoke.worker01",
        "-P",
        "threads",
        "-c",
        "2",
        "-E",
        "--without-gossip",
        "--without-mingle",
    )
    with celery(
        *arguments, app="tests.integration.schedule.agentapp", role="agent", cluster="worker01", redis_url=redis_url
    ):
        yield


def rows(client: redis.Redis, key: str, number: int, timeout: float = 30) -> list[Any]:
    wait_for(lambda: client.llen(key) >= number, timeout, f"{number} rows in {key}")
    return [json.loads(row) for row in client.lrange(key, 0, -1)]


def test_a_tick_calls_a_cycle(worker: None, redis_client: redis.Redis) -> None:
    run, expires = new_run_id(), time.time() + 60
    redis_client.lpush("spoke.worker01", TickFactory().message("worker01", "sample-scorer", run, expires))
    (row,) = rows(redis_client, SEEN, 1)
    assert (row["task"], row["args"]) == ("dsf.cycle", ["sample-scorer", run, pytest.approx(expires, abs=0.001)])
    assert row["shown"] == f"('sample-scorer', '{run}', {expires:.3f})"


def test_beat_and_worker_together(worker: None, redis_url: str, redis_client: redis.Redis) -> None:
    ScheduleStore(redis_client).upsert([entry("worker01", "sample-scorer", 1), entry("worker01", "other", 2)])
    # As by hand: `dsf beat` runs it without the rest of Celery's command.
    with celery("beat", role="beat", redis_url=redis_url):
        seen = rows(redis_client, SEEN, 5)
    assert {row["args"][0] for row in seen} == {"sample-scorer", "other"}
    run = send_now(redis_client, "worker01", "other", 30)
    wait_for(lambda: run in [row["args"][1] for row in rows(redis_client, SEEN, 1)])
