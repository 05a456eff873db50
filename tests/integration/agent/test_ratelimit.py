"""Celery's rate limits of an agent's tasks: the pace is held, and every tick still ends in an outcome.

A rate limit is an upper bound, and the token of the first task is there at once: so whatever else slows the machine,
the task number n cannot begin before n gaps have passed since the first tick was sent.
"""

from __future__ import annotations

import signal
import time
from typing import Literal

import pytest

from dsf import keys
from tests.integration.agent.conftest import RESULTS, SERIES, AgentFactory
from tests.integration.agent.harness import CLUSTER, Agent, summary
from tests.support.httpserver import Exchange, Handler, ScriptedServer, answer, matrix
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

#: Tasks per second, and what is sent at once.
RATE = 4
TICKS = 7
QUEUE = keys.spoke_queue(CLUSTER)
#: Seconds by which clocks of two threads may read differently, and by which Celery rounds.
_GRAIN = 0.02


class Stopwatch:
    """Answers as a handler does and notes when it was asked, in seconds since it was made."""

    def __init__(self, handler: Handler) -> None:
        self.times: list[float] = []
        self._handler = handler
        self._start = time.monotonic()

    def __call__(self, exchange: Exchange) -> None:
        self.times.append(time.monotonic() - self._start)
        self._handler(exchange)


def limited(make_agent: AgentFactory, source: str, scorer: str, **limits: str) -> Agent:
    """An agent with so many scorers that none waits for an earlier cycle of its own."""
    agent = make_agent(**limits)
    agent.configure(*(summary(f"s{n}", source, scorer) for n in range(TICKS)))
    return agent


def asked_in_all(
    limit: Literal["fetch", "score"], make_agent: AgentFactory, expires: float
) -> tuple[list[float], list]:
    """Times of the requests that the limit is about, and how the ticks ended: outcome and reason of each."""
    with ScriptedServer(matrix(SERIES)) as source, ScriptedServer(answer(RESULTS)) as scorer:
        agent = limited(make_agent, source.url, scorer.url, **{f"agent_{limit}_rate_limit": f"{RATE}/s"})
        with agent:
            if limit == "fetch":
                watch = Stopwatch(matrix(SERIES))
                source.script(watch)
            else:
                watch = Stopwatch(answer(RESULTS))
                scorer.script(watch)
            until = time.time() + expires
            sent = {agent.tick(f"s{n}", expires=until - time.time()) for n in range(TICKS)}
            results = [agent.result(30) for _ in sent]
            assert {result.run for result in results} == sent
            assert agent.no_result(0.2)
            assert agent.spooled() == []
        return sorted(watch.times), [(result.outcome, result.reason) for result in results]


@pytest.mark.parametrize("limit", ["fetch", "score"])
def test_the_pace_is_held_and_nothing_is_lost(limit: Literal["fetch", "score"], make_agent: AgentFactory) -> None:
    times, ends = asked_in_all(limit, make_agent, expires=60)
    assert ends == [("ok", "")] * TICKS
    assert len(times) == TICKS
    for number, at in enumerate(times):
        assert at >= number / RATE - _GRAIN, times


@pytest.mark.parametrize("limit", ["fetch", "score"])
def test_what_waits_too_long_for_its_turn_is_skipped_and_said(
    limit: Literal["fetch", "score"], make_agent: AgentFactory
) -> None:
    for _ in range(5):
        times, ends = asked_in_all(limit, make_agent, expires=0.9)
        # In 0.9 s there are turns for four of them at most.
        assert set(ends) <= {("ok", ""), ("skipped", "expired"), ("error", "deadline"), ("error", "timeout")}
        assert ends.count(("ok", "")) <= len(times) <= 5
        # One whose time was over in the middle of a stage waited for no turn: others then, on a busy machine.
        if "error" not in {outcome for outcome, _ in ends}:
            break
    assert ("skipped", "expired") in ends


Break = Literal["end", "connection", "end without redis"]


@pytest.mark.parametrize("limit", ["fetch", "score"])
@pytest.mark.parametrize("what", ["end", "connection", "end without redis"])
def test_what_waits_for_its_turn_outlives(
    what: Break, limit: Literal["fetch", "score"], make_agent: AgentFactory
) -> None:
    """Celery drops it when the worker is told to end and when a connection is lost: it has Redis send it again."""
    with (
        ScriptedServer(matrix(SERIES)) as source,
        ScriptedServer(answer(RESULTS)) as scorer,
        RedisServer(aof=True) as server,
    ):
        # Without a turn for it in the time of this test, unless it is the limit that goes on.
        rate = "2/s" if what == "connection" else "1/h"
        agent = make_agent(redis_url=server.url, **{f"agent_{limit}_rate_limit": rate, "agent_concurrency": TICKS + 1})
        agent.configure(*(summary(f"s{n}", source.url, scorer.url) for n in range(TICKS)))
        agent.start()
        sent = {agent.tick(f"s{n}", expires=300) for n in range(TICKS)}
        behind, before = (TICKS, source) if limit == "score" else (1, source)
        wait_for(lambda: len(before.requests) >= behind and not agent.redis.exists(QUEUE), 20, "all to have been taken")
        if what == "connection":
            for client in agent.redis.client_list():
                if str(client["name"]).startswith("dsf-agent"):
                    agent.redis.client_kill_filter(_id=client["id"])
        elif what == "end":
            assert agent.stop() == 0
        else:
            server.kill()
            wait_for(lambda: "Cannot connect to" in agent.log(), 20, "the agent to miss Redis")
            assert agent.process is not None
            agent.process.signal(signal.SIGTERM)
            # Of their results some cannot be sent in time.
            wait_for(lambda: len(scorer.requests) == TICKS, 30, "all to be scored")
            server.restart()
            return
        results = [agent.result(30) for _ in sent]
        assert {result.run for result in results} == sent
        assert {result.outcome for result in results} == {"ok"}
