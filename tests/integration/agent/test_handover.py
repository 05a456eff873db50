"""One stage hands on to the next one although Redis is away for a while."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import redis
from celery import Celery
from celery.worker import state
from kombu.exceptions import OperationalError

from dsf import keys
from dsf.agent import runtime
from dsf.agent.stagetask import StageTask
from dsf.settings import Settings
from dsf.store.client import connect
from dsf.ticks import iso
from tests.integration.agent.conftest import SERIES, AgentFactory
from tests.integration.agent.harness import CLUSTER, summary
from tests.support.httpserver import Gate, ScriptedServer, matrix
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

QUEUE = keys.spoke_queue(CLUSTER)
ARGS = ("sample", "1718600000000-0123abcd")
#: Commands that make a server refuse writes or not answer them, and those that end that.
TROUBLES = {
    "full": ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    "replica": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    "silent": ("CLIENT PAUSE 60000 WRITE", "CLIENT UNPAUSE"),
}

HandOn = Callable[[float], None]


@pytest.fixture
def hand_on(
    redis_url: str, settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> Iterator[HandOn]:
    """Calls the task `dsf.score` as the next step of a chain whose messages expire in so many seconds."""
    client = connect(settings_factory(redis_url=redis_url, redis_socket_timeout=0.2), retries=0)
    clock = SimpleNamespace(now=time.time)
    cycles = SimpleNamespace(seconds_left=lambda _: 20.0)
    agent = SimpleNamespace(queue=QUEUE, redis=client, clock=clock, cycles=cycles)
    monkeypatch.setattr(runtime, "_current", agent)
    with Celery("test", set_as_current=False) as app:
        task = app.task(_score, base=StageTask, name="dsf.score", shared=False)

        def call(seconds: float) -> None:
            task.apply_async(ARGS, queue=QUEUE, expires=iso(time.time() + seconds), chain=[])

        yield call
    client.close()


def _score(scorer: str, run_id: str) -> None:
    """Is only called for, never run."""


@pytest.fixture(params=TROUBLES)
def trouble(request: pytest.FixtureRequest, redis_client: redis.Redis) -> Iterator[Callable[[], None]]:
    """Redis is in trouble until this is called."""
    begin, end = TROUBLES[request.param]
    redis_client.execute_command(*begin.split())

    def over() -> None:
        redis_client.execute_command(*end.split())

    yield over
    over()


def test_it_waits_until_redis_takes_the_message(
    hand_on: HandOn, trouble: Callable[[], None], redis_client: redis.Redis
) -> None:
    timer = threading.Timer(1.5, trouble)
    timer.start()
    try:
        hand_on(30)
    finally:
        timer.join()
    # The same message may be there twice when the answer to the first was lost.
    (message,) = {json.dumps(json.loads(text)) for text in redis_client.lrange(QUEUE, 0, -1)}
    assert json.loads(json.loads(message)["body"])[0] == list(ARGS)


def test_it_does_not_wait_longer_than_the_message_is_of_use(hand_on: HandOn, trouble: Callable[[], None]) -> None:
    began = time.monotonic()
    with pytest.raises(OperationalError, match="tried until it would have expired"):
        hand_on(2.5)
    assert 1 < time.monotonic() - began < 3.5
    trouble()


def test_it_does_not_keep_an_agent_that_is_to_end(
    hand_on: HandOn, trouble: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The exit code of a warm shutdown.
    timer = threading.Timer(0.5, lambda: monkeypatch.setattr(state, "should_stop", 0))
    timer.start()
    began = time.monotonic()
    try:
        with pytest.raises(OperationalError, match="told to end"):
            hand_on(30)
    finally:
        timer.join()
    assert time.monotonic() - began < 3
    trouble()


def test_a_cycle_goes_on_after_a_restart_of_redis(make_agent: AgentFactory, scorer: ScriptedServer) -> None:
    gate = Gate(matrix(SERIES))
    with RedisServer(aof=True) as server, ScriptedServer(gate) as source:
        agent = make_agent(redis_url=server.url)
        agent.configure(summary("sample", source.url, scorer.url))
        agent.start()
        run_id = agent.tick("sample", expires=60)
        assert gate.entered.wait(5)
        server.kill()
        gate.opened.set()
        wait_for(lambda: "next stage waits for Redis" in agent.log() or "cut off" in agent.log(), 10)
        server.restart()
        result = agent.result(30)
        assert (result.run, result.outcome) == (run_id, "ok")
        assert agent.stop() == 0


def test_a_cycle_that_was_cut_off_does_not_hold_back_the_next(
    make_agent: AgentFactory, source: ScriptedServer, scorer: ScriptedServer, redis_client: redis.Redis
) -> None:
    agent = make_agent(redis_socket_timeout=1.5)
    agent.configure(summary("sample", source.url, scorer.url))
    agent.start()
    gate = Gate(matrix(SERIES))
    source.script(gate, matrix(SERIES))
    agent.tick("sample", expires=4)
    assert gate.entered.wait(5)
    redis_client.execute_command("CLIENT", "PAUSE", "60000", "WRITE")
    try:
        gate.opened.set()
        wait_for(lambda: "cycle cut off" in agent.log(), 30, "the cycle to be cut off")
    finally:
        redis_client.execute_command("CLIENT", "UNPAUSE")
    assert "Task dsf.fetch" not in "".join(line for line in agent.log().splitlines() if "INTERNAL ERROR" in line)
    wanted = agent.tick("sample", expires=30)
    result = agent.result(30)
    while result.run != wanted:
        result = agent.result(30)
    assert result.outcome == "ok"
