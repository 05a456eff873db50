"""Celery's rate limit of an agent's cycles: the pace is held, and every tick still ends in an outcome.

A rate limit is an upper bound, and the token of the first task is there at once: so whatever else slows the machine,
the task number n cannot begin before n gaps have passed since the first tick was sent.
"""

from __future__ import annotations

import time

from tests.integration.agent.conftest import RESULTS, SERIES, AgentFactory
from tests.integration.agent.harness import Agent, summary
from tests.support.httpserver import Exchange, Handler, ScriptedServer, answer, matrix

#: Tasks per second, and tasks that start at once.
RATE = 4
TICKS = 7
#: Seconds by which clocks of two threads may read differently, and by which Celery rounds.
_GRAIN = 0.02


class Stopwatch:
    """Responds as a handler does, and records the times of requests, in seconds since `start`."""

    def __init__(self, handler: Handler) -> None:
        self.times: list[float] = []
        self._handler = handler
        self.start = time.monotonic()

    def __call__(self, exchange: Exchange) -> None:
        self.times.append(time.monotonic() - self.start)
        self._handler(exchange)


def limited(make_agent: AgentFactory, source: str, scorer: str, **limits: str) -> Agent:
    """Return an agent with so many scorers that none waits for an earlier cycle of its own."""
    agent = make_agent(**limits)
    agent.configure(*(summary(f"s{n}", source, scorer) for n in range(TICKS)))
    return agent


def asked_in_all(make_agent: AgentFactory, expires: float) -> tuple[list[float], list[tuple[str, str]]]:
    """Return the times of requests to the source, and the outcome and reason of each tick."""
    watch = Stopwatch(matrix(SERIES))
    with ScriptedServer(watch) as source, ScriptedServer(answer(RESULTS)) as scorer:
        agent = limited(make_agent, source.url, scorer.url, agent_rate_limit=f"{RATE}/s")
        with agent:
            # The pace is measured from here, because a late first request proves nothing.
            watch.start = time.monotonic()
            deadline = time.time() + expires
            run_ids = {agent.tick(f"s{n}", expires=deadline - time.time()) for n in range(TICKS)}
            results = [agent.result(30) for _ in run_ids]
            assert {result.run for result in results} == run_ids
            assert agent.no_result(0.2)
        return sorted(watch.times), [(str(result.outcome), result.reason) for result in results]


def test_rate_limit_is_kept_and_no_tick_is_lost(make_agent: AgentFactory) -> None:
    times, ends = asked_in_all(make_agent, expires=60)
    assert ends == [("ok", "")] * TICKS
    assert len(times) == TICKS
    for number, at in enumerate(times):
        assert at >= number / RATE - _GRAIN, times


def test_ticks_that_exceed_the_rate_limit_are_skipped_as_expired(make_agent: AgentFactory) -> None:
    for _ in range(5):
        times, ends = asked_in_all(make_agent, expires=0.9)
        # In 0.9 s there are turns for four of them at most.
        assert set(ends) <= {("ok", ""), ("skipped", "expired"), ("error", "deadline"), ("error", "timeout")}
        assert ends.count(("ok", "")) <= len(times) <= 5
        # A cycle that timed out within a stage left a gap in the pace, as happens on a busy machine.
        if "error" not in {outcome for outcome, _ in ends}:
            break
    assert ("skipped", "expired") in ends
