"""A real Celery worker takes beat's ticks and runs the three steps."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Exchange, Queue

from dsf import keys
from dsf.messages import new_run_id
from dsf.store.schedule import ScheduleStore
from dsf.ticks import TickFactory, iso, send_now
from tests.integration.schedule.agentapp import REVOKED, SEEN, SLOW_SCORER
from tests.integration.schedule.processes import beat, celery
from tests.integration.schedule.support import entry
from tests.support.wait import wait_for

STEPS = ["dsf.fetch", "dsf.score", "dsf.publish"]


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


def test_a_tick_becomes_three_steps(worker: None, redis_client: redis.Redis) -> None:
    run, expires = new_run_id(), time.time() + 60
    redis_client.lpush("spoke.worker01", TickFactory().message("worker01", "sample-scorer", run, expires))
    seen = rows(redis_client, SEEN, 3)
    assert [row["task"] for row in seen] == STEPS
    for row in seen:
        assert row["args"] == ["sample-scorer", run]
        assert row["shown"] == f"('sample-scorer', '{run}')"
        assert row["expires"] == iso(expires)
        assert row["queue"] == "spoke.worker01"
        assert row["root"] == seen[0]["root"]


def test_beat_and_worker_together(worker: None, redis_url: str, redis_client: redis.Redis) -> None:
    ScheduleStore(redis_client).upsert([entry("worker01", "sample-scorer", 1), entry("worker01", "other", 2)])
    with beat(redis_url):
        seen = rows(redis_client, SEEN, 15)
    assert {row["task"] for row in seen} == set(STEPS)
    assert {row["args"][0] for row in seen} == {"sample-scorer", "other"}
    run = send_now(redis_client, "worker01", "other", 30)
    wait_for(lambda: ["dsf.publish", run] in [[row["task"], row["args"][1]] for row in rows(redis_client, SEEN, 1)])


def test_an_expired_tick_is_revoked(worker: None, redis_client: redis.Redis) -> None:
    run = new_run_id()
    redis_client.lpush("spoke.worker01", TickFactory().message("worker01", "s", run, time.time() - 1))
    assert rows(redis_client, REVOKED, 1) == [["dsf.fetch", True, f"('s', '{run}')"]]
    assert not redis_client.exists(SEEN)


def test_a_step_that_comes_too_late_is_revoked(worker: None, redis_client: redis.Redis) -> None:
    # The worker must be up before the clock starts.
    redis_client.lpush("spoke.worker01", TickFactory().message("worker01", "s", new_run_id(), time.time() + 60))
    rows(redis_client, SEEN, 3)
    run = new_run_id()
    message = TickFactory().message("worker01", SLOW_SCORER, run, time.time() + 2)
    redis_client.lpush("spoke.worker01", message)
    assert rows(redis_client, REVOKED, 1) == [["dsf.score", True, f"('{SLOW_SCORER}', '{run}')"]]
    assert [row["task"] for row in rows(redis_client, SEEN, 4)[3:]] == ["dsf.fetch"]


def test_the_rest_of_the_chain_sent_by_hand(worker: None, redis_url: str, redis_client: redis.Redis) -> None:
    run, expires = new_run_id(), time.time() + 60
    queue = Queue("spoke.worker01", Exchange("spoke.worker01", no_declare=True), no_declare=True)
    with Celery("by-hand", broker=redis_url, set_as_current=False) as app:
        app.conf.update(
            broker_transport_options={"sep": ":", "priority_steps": [0]}, task_queues=[queue], task_ignore_result=True
        )
        app.send_task("test.by_hand", [run, expires], queue="spoke.worker01")
    seen = rows(redis_client, SEEN, 2)
    assert [(row["task"], row["args"], row["expires"]) for row in seen] == [
        (task, ["hand", run], iso(expires)) for task in STEPS[1:]
    ]
    assert redis_client.llen(keys.spoke_queue("worker01")) == 0
