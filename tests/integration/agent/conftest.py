"""Fixtures of the agent's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent.harness import Agent, summary
from tests.support.httpserver import ScriptedServer, answer, matrix
from tests.support.redisserver import RedisServer

SERIES = {"metric": {"__name__": "up", "pod": "a"}, "values": [[1718600000, "1"], [1718600060, "0.5"]]}
RESULTS = {"results": [{"metric": {"__name__": "up", "pod": "a", "node": "n1"}, "score": 12.5}]}

AgentFactory = Callable[..., Agent]


@pytest.fixture
def source() -> Iterator[ScriptedServer]:
    """A Prometheus that always answers with one series."""
    with ScriptedServer(matrix(SERIES)) as server:
        yield server


@pytest.fixture
def scorer() -> Iterator[ScriptedServer]:
    """A scoring API that always answers with one result."""
    with ScriptedServer(answer(RESULTS)) as server:
        yield server


@pytest.fixture
def make_agent(tmp_path: Path, redis_url: str) -> Iterator[AgentFactory]:
    """Makes agents that are stopped after the test; they are not started yet."""
    with ExitStack() as stack:

        def make(kind: type[Agent] = Agent, **settings: object) -> Agent:
            agent = kind(tmp_path, str(settings.pop("redis_url", redis_url)), **settings)
            stack.callback(agent.__exit__)
            return agent

        yield make


@pytest.fixture
def own_agent(make_agent: AgentFactory, source: ScriptedServer, scorer: ScriptedServer) -> Agent:
    """A running agent with one scorer, `sample`, that no other test has used."""
    new_agent = make_agent()
    new_agent.configure(_sample(source, scorer))
    return new_agent.start()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent with its own Redis, for the tests of a file."""
    with RedisServer() as server:
        agent = Agent(tmp_path_factory.mktemp("agent"), server.url)
        agent.configure()
        with agent:
            yield agent


@pytest.fixture
def agent(started: Agent, source: ScriptedServer, scorer: ScriptedServer) -> Agent:
    """A running agent with one scorer, `sample`. Only its metrics tell of the tests before."""
    started.begin(_sample(source, scorer))
    return started


def _sample(source: ScriptedServer, scorer: ScriptedServer) -> dict[str, Any]:
    return summary("sample", f"{source.url}/api/v1/query_range", f"{scorer.url}/scoring")
