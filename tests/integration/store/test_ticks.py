"""A tick that a user requests."""

from __future__ import annotations

import json
import time

import pytest
import redis

from dsf import keys
from dsf.errors import QueueFullError, UnknownScorerError
from dsf.messages import run_time
from dsf.store import ticks
from dsf.store.schedule import ScheduleStore
from dsf.store.ticks import RUN_SLACK, send_now
from tests.integration.beat.support import books, entry, pushed


def test_manual_tick_is_sent_opened_and_counted(redis_client: redis.Redis) -> None:
    store = ScheduleStore(redis_client)
    store.upsert([entry("c1", suspended=True)])
    due = store.read_due_times(["c1/s"])
    before = time.time()
    run = send_now(redis_client, "c1", "s", 30, queue_limit=2)
    after = time.time()
    assert pushed(redis_client, "c1") == [("s", run)]
    assert books(redis_client, "c1").scheduled == books(redis_client, "c1").open == 1
    # In whole milliseconds.
    assert before - 0.001 <= run_time(run) <= after
    assert redis_client.zscore(keys.OPEN_RUNS, f"c1/s/{run}") == pytest.approx(run_time(run) + 30 + RUN_SLACK, abs=0.01)
    [message] = redis_client.lrange(keys.spoke_queue("c1"), 0, -1)
    deadline = json.loads(json.loads(message)["body"])[0][2]
    assert deadline == pytest.approx(run_time(run) + 30, abs=0.01)
    assert store.read_due_times(["c1/s"]) == due


def test_manual_tick_uses_the_time_of_redis(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the user's machine may be off, and a later run id takes precedence."""
    store = ScheduleStore(redis_client)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 7200)
    store.upsert([entry("c1")])
    run = send_now(redis_client, "c1", "s", 30, queue_limit=2)
    assert run_time(run) < real() + 3600
    assert store.read_due_times(["c1/s"])["c1/s"] < real() + 3600


def test_manual_tick_for_an_unknown_pair_is_refused(redis_client: redis.Redis) -> None:
    with pytest.raises(UnknownScorerError, match="'s' does not run on cluster 'c1'"):
        send_now(redis_client, "c1", "s", 30, queue_limit=2)
    assert redis_client.dbsize() == 0


def test_manual_tick_for_a_full_queue_is_refused(redis_client: redis.Redis) -> None:
    ScheduleStore(redis_client).upsert([entry("c1")])
    for _ in range(2):
        send_now(redis_client, "c1", "s", 30, queue_limit=2)
    with pytest.raises(QueueFullError, match=r"2 messages wait in spoke\.c1: the agent of cluster 'c1'"):
        send_now(redis_client, "c1", "s", 30, queue_limit=2)
    assert books(redis_client, "c1").scheduled == len(pushed(redis_client, "c1")) == 2


def test_repeated_rescore_call_sends_once(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    ScheduleStore(redis_client).upsert([entry("c1")])
    # As a client repeats the call after a lost answer; its queue is full then.
    monkeypatch.setattr(ticks, "make_run_id", lambda _: "1795000000000-00000000")
    for _ in range(2):
        assert send_now(redis_client, "c1", "s", 30, queue_limit=1) == "1795000000000-00000000"
    assert redis_client.llen(keys.spoke_queue("c1")) == books(redis_client, "c1").scheduled == 1
