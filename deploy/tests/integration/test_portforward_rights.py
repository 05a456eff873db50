"""The chart's right to reach Redis through the hub's API server, on the newest and the oldest supported behaviour.

Since Kubernetes 1.35 the upgrade to a WebSocket, a GET, also needs the verb `create`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import chart
from tests.support.controlplane import API_SERVER, ControlPlane, ControlPlaneMissingError
from tests.support.fixtures import SettingsFactory
from tests.support.portforwards import ALLOWED, FORBIDDEN, create_pod, find_refusal

_POD = "dynamic-scoring-redis-0"
#: The oldest version that kube-apiserver 1.36 emulates. Up to 1.34 a port-forward needs the same rights.
_OLDEST = "1.33"
_OLD_OPTIONS = (f"--emulated-version={_OLDEST}", f"--min-compatibility-version={_OLDEST}")


@pytest.fixture(scope="module", params=["newest", _OLDEST] if API_SERVER == "kube-apiserver" else [API_SERVER])
def api_server(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    try:
        server = ControlPlane(options=_OLD_OPTIONS if request.param == _OLDEST else (), crds=False)
    except ControlPlaneMissingError as error:
        pytest.skip(f"controlplane: {error}")
    with server:
        yield server


def _response(api_server: ControlPlane, settings_factory: SettingsFactory, verbs: list[str], pod: str = _POD) -> str:
    """Return why no port-forward to a pod that no node runs is possible with the chart's rule and these verbs."""
    namespace = api_server.namespace()
    for name in (_POD, "another"):
        create_pod(api_server, namespace, name)
    rule: dict[str, Any] = _rule() | {"verbs": verbs}
    kubeconfig: Path = api_server.service_account(namespace, "agent", [rule])
    redis_pod = f"{namespace}/{pod}:6379"
    return find_refusal(settings_factory(role="agent", redis_pod=redis_pod, hub_kubeconfig=kubeconfig))


def _rule() -> dict[str, Any]:
    (rule,) = chart.find_object(chart.render({}), "Role", "dynamic-scoring-redis-portforward")["rules"]
    return dict(rule)


def test_role_of_the_chart_allows_the_upgrade(api_server: ControlPlane, settings_factory: SettingsFactory) -> None:
    assert ALLOWED in _response(api_server, settings_factory, _rule()["verbs"])


def test_role_of_the_chart_is_for_the_pod_of_redis_alone(
    api_server: ControlPlane, settings_factory: SettingsFactory
) -> None:
    response = _response(api_server, settings_factory, _rule()["verbs"], pod="another")
    assert FORBIDDEN in response


def test_upgrade_needs_get_always_and_create_on_newer_api_servers(
    api_server: ControlPlane, settings_factory: SettingsFactory, request: pytest.FixtureRequest
) -> None:
    assert FORBIDDEN in _response(api_server, settings_factory, ["create"])
    is_forbidden = FORBIDDEN in _response(api_server, settings_factory, ["get"])
    assert is_forbidden == ("newest" in request.node.name)
