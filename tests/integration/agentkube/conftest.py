"""Fixtures of the tests in this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent.conftest import RESULTS, SERIES
from tests.integration.agent.harness import summary
from tests.integration.agentkube.spoke import KubeAgent, Spoke
from tests.support.controlplane import ControlPlane
from tests.support.httpserver import ScriptedServer, answer, matrix

AgentFactory = Callable[..., KubeAgent]
SummaryFactory = Callable[..., dict[str, Any]]


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
def summarise(source: ScriptedServer, scorer: ScriptedServer) -> SummaryFactory:
    """Makes summaries for these two servers."""

    def make(name: str = "sample", **values: object) -> dict[str, Any]:
        return summary(name, f"{source.url}/api/v1/query_range", f"{scorer.url}/scoring", **values)

    return make


@pytest.fixture
def spoke(control_plane: ControlPlane) -> Spoke:
    """A namespace of its own, whose account may also read the Secret `prometheus`."""
    return Spoke(control_plane, "prometheus")


@pytest.fixture
def make_agent(tmp_path: Path, redis_url: str) -> Iterator[AgentFactory]:
    """Makes agents that are stopped after the test; they are not started yet."""
    with ExitStack() as stack:

        def make(spoke: Spoke, **settings: object) -> KubeAgent:
            agent = KubeAgent(tmp_path, redis_url, spoke, **settings)
            stack.callback(agent.__exit__)
            return agent

        yield make


@pytest.fixture
def agent(make_agent: AgentFactory, spoke: Spoke, summarise: SummaryFactory) -> KubeAgent:
    """A running agent with one scorer, `sample`, whose source wants the token in `prometheus`."""
    spoke.secret("prometheus", {"token": "first-token"})
    spoke.deliver(summarise(sourceEndpointAuthName="prometheus", sourceEndpointAuthKey="token"))
    started = make_agent(spoke)
    started.start()
    return started
