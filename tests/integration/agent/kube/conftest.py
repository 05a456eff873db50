"""Fixtures of the tests in this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.agent.conftest import AgentFactory
from tests.integration.agent.harness import summary
from tests.integration.agent.kube.spoke import KubeAgent, Spoke
from tests.support.controlplane import ControlPlane
from tests.support.httpserver import ScriptedServer

SummaryFactory = Callable[..., dict[str, Any]]


@pytest.fixture
def summarise(source: ScriptedServer, scorer: ScriptedServer) -> SummaryFactory:
    """Return a function that makes summaries for these two servers."""

    def make_summary(name: str = "sample", **values: object) -> dict[str, Any]:
        return summary(name, f"{source.url}/api/v1/query_range", f"{scorer.url}/scoring", **values)

    return make_summary


@pytest.fixture
def spoke(control_plane: ControlPlane) -> Spoke:
    """A simulated managed cluster: a namespace whose account may also read the Secret `prometheus`."""
    return Spoke(control_plane, "prometheus")


@pytest.fixture
def agent(make_agent: AgentFactory, spoke: Spoke, summarise: SummaryFactory) -> KubeAgent:
    """A running agent with one scorer, `sample`, whose source requires the token in `prometheus`."""
    spoke.secret("prometheus", {"token": "first-token"})
    spoke.deliver(summarise(sourceEndpointAuthName="prometheus", sourceEndpointAuthKey="token"))
    kube_agent: KubeAgent = make_agent(KubeAgent, spoke=spoke)
    kube_agent.start()
    return kube_agent
