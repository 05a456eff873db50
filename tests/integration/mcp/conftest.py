"""Fixtures of the tests in this folder: an API server with something to plan, and servers that tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsf.kube.resources import DYNAMIC_SCORERS, Resource
from dsf.optimizer.solver import SolverProcess
from tests.integration.mcp.assistant import Assistant
from tests.integration.mcp.server import Server, environment
from tests.integration.optimizer.bed import PERFORMANCE, Bed
from tests.support.controlplane import ControlPlane
from tests.support.policycrds import install_policy_crds
from tests.support.redisserver import RedisServer

MEANING = "How fast an app runs there; measured once."
_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")


@pytest.fixture(scope="session")
def plan_plane(control_plane: ControlPlane) -> ControlPlane:
    """The API server with the kinds that plans need."""
    install_policy_crds(control_plane.session())
    return control_plane


@pytest.fixture
def bed(plan_plane: ControlPlane) -> Iterator[Bed]:
    """A namespace with everything to plan and nothing planned; one of its scores has a scorer."""
    # It is never started: the servers have their own.
    made = Bed(plan_plane, SolverProcess())
    scorer = {
        "apiVersion": DYNAMIC_SCORERS.api_version,
        "kind": DYNAMIC_SCORERS.kind,
        "metadata": {"name": "performance-scorer", "namespace": made.namespace},
        "spec": {
            "description": MEANING,
            "configURL": "http://scorer.example:8000/config",
            "configSyncMode": "None",
            "scoreDimensionFormat": "${app};${device}",
            "source": {"type": "None"},
            "scoring": {"path": "/scoring", "params": {"name": PERFORMANCE.replace("-", "_"), "interval": 30}},
        },
    }
    made.session.create(DYNAMIC_SCORERS.path(made.namespace), scorer)
    yield made
    made.session.delete(DYNAMIC_SCORERS.path(made.namespace, "performance-scorer"))
    made.close()


@pytest.fixture(scope="session")
def common(plan_plane: ControlPlane, redis_server: RedisServer) -> dict[str, object]:
    """Settings of every server."""
    return {"kubeconfig": plan_plane.kubeconfig, "redis_url": redis_server.url, "log_format": "json"}


@pytest.fixture(scope="session")
def open_server(common: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without authentication, as on a laptop."""
    server = Server(tmp_path_factory.mktemp("open"), common | {"optimizer_auth": "none"})
    yield server
    server.stop()


@pytest.fixture(scope="session")
def guarded_server(common: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks the API server about its callers."""
    server = Server(tmp_path_factory.mktemp("guarded"), common | {"optimizer_auth": "kubernetes"})
    yield server
    server.stop()


@pytest.fixture
def stdio(common: dict[str, object], tmp_path: Path) -> Callable[..., Assistant]:
    """`stdio(mode=...)`: an assistant that starts `dsf mcp`; settings can be changed."""

    def make(*, mode: Any = "auto", **settings: object) -> Assistant:
        return Assistant(environment=environment(**(common | settings)), errors=str(tmp_path / "stderr"), mode=mode)

    return make


@pytest.fixture(params=["http", "http-legacy", "stdio", "stdio-legacy"])
def assistant(request: pytest.FixtureRequest, stdio: Callable[..., Assistant]) -> Assistant:
    """An assistant of each transport and dialect."""
    transport, _, mode = request.param.partition("-")
    if transport == "stdio":
        return stdio(mode=mode or "auto")
    return Assistant(request.getfixturevalue("open_server").mcp, mode=mode or "auto")


@pytest.fixture
def near(open_server: Server) -> Assistant:
    """One assistant, where the transport makes no difference."""
    return Assistant(open_server.mcp)


@pytest.fixture
def token(bed: Bed) -> Callable[..., str]:
    """`token(name, rules)`: the token of a new ServiceAccount that may do this everywhere."""

    def make(name: str, rules: list[dict[str, Any]]) -> str:
        bed.plane.service_account(bed.namespace, name, rules)
        path = _ACCOUNTS.path(bed.namespace, name, "token")
        return str(bed.session.create(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"])

    return make
