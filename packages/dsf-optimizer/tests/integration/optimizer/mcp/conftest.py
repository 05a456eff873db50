"""Fixtures of the tests in this folder: something to plan that has a scorer, and servers that tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsf.kube.resources import DYNAMIC_SCORERS, Resource
from tests.support.assistant import Assistant
from tests.support.controlplane import ControlPlane
from tests.support.redisserver import RedisServer

from ..bed import PERFORMANCE, OptimizerHarness
from .server import Server, environment

MEANING = "How fast an app runs there; measured once."
_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")


@pytest.fixture
def bed(bed: OptimizerHarness) -> Iterator[OptimizerHarness]:
    """The bed with a DynamicScorer for one of its scores."""
    scorer = {
        "apiVersion": DYNAMIC_SCORERS.api_version,
        "kind": DYNAMIC_SCORERS.kind,
        "metadata": {"name": "performance-scorer", "namespace": bed.namespace},
        "spec": {
            "description": MEANING,
            "configURL": "http://scorer.example:8000/config",
            "configSyncMode": "None",
            "scoreDimensionFormat": "${app};${device}",
            "source": {"type": "None"},
            "scoring": {"path": "/scoring", "params": {"name": PERFORMANCE.replace("-", "_"), "interval": 30}},
        },
    }
    bed.session.create(DYNAMIC_SCORERS.path(bed.namespace), scorer)
    yield bed
    bed.session.delete(DYNAMIC_SCORERS.path(bed.namespace, "performance-scorer"))


@pytest.fixture(scope="session")
def common(policy_plane: ControlPlane, redis_server: RedisServer) -> dict[str, object]:
    """Settings of every server."""
    return {"kubeconfig": policy_plane.kubeconfig, "redis_url": redis_server.url, "log_format": "json"}


@pytest.fixture(scope="session")
def open_server(common: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without authentication, as on a laptop."""
    server = Server(tmp_path_factory.mktemp("open"), common | {"optimizer_auth": "none"})
    yield server
    server.stop()


@pytest.fixture(scope="session")
def guarded_server(common: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that authorizes its callers by the API server."""
    server = Server(tmp_path_factory.mktemp("guarded"), common | {"optimizer_auth": "kubernetes"})
    yield server
    server.stop()


@pytest.fixture
def stdio(common: dict[str, object], tmp_path: Path) -> Callable[..., Assistant]:
    """`stdio(mode=...)`: an assistant that starts `dsf mcp`; settings can be changed."""

    def make(*, mode: Any = "auto", **settings: object) -> Assistant:
        return Assistant(environment=environment(**(common | settings)), errors=str(tmp_path / "stderr"), mode=mode)

    return make


@pytest.fixture(params=["http", "http-legacy", "stdio"])
def assistant(request: pytest.FixtureRequest, stdio: Callable[..., Assistant]) -> Assistant:
    """An assistant of each transport, and of the old dialect."""
    transport, _, mode = request.param.partition("-")
    if transport == "stdio":
        return stdio()
    return Assistant(request.getfixturevalue("open_server").mcp, mode=mode or "auto")


@pytest.fixture
def near(open_server: Server) -> Assistant:
    """An assistant for tests that work the same with each transport."""
    return Assistant(open_server.mcp)


@pytest.fixture
def token(bed: OptimizerHarness) -> Callable[..., str]:
    """`token(name, rules)`: the token of a new ServiceAccount that may do this everywhere."""

    def make(name: str, rules: list[dict[str, Any]]) -> str:
        bed.plane.service_account(bed.namespace, name, rules)
        path = _ACCOUNTS.path(bed.namespace, name, "token")
        return str(bed.session.create(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"])

    return make
