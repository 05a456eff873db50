"""`dsf` with kubectl's context: the JSON API through a real API server's service proxy, with the chart's roles."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import Result

from dsf.cli.kubehub import VIEWER
from dsf.kube.resources import PODS, SERVICES, Resource
from dsf.settings import settings
from tests.integration.exporter.fleet import SAMPLE, good_fleet
from tests.integration.http.test_proxies import Proxy
from tests.integration.web.test_kubernetes import SCORERS, own_rules, own_settings
from tests.support import chart, commandline
from tests.support.controlplane import ControlPlane
from tests.support.wait import wait_for
from tests.support.webprocess import WebProcess

ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints")


def role_rules(role: str) -> list[dict[str, Any]]:
    """Return the rules of one of the chart's ClusterRoles for people."""
    roles = {role["metadata"]["name"]: role["rules"] for role in chart.of_kind(chart.render({}), "ClusterRole")}
    rules: list[dict[str, Any]] = roles[f"dynamic-scoring-framework-{role}"]
    return rules


@dataclass
class Installation:
    """A page behind a Service, as the chart makes it."""

    plane: ControlPlane
    namespace: str
    page: WebProcess


@pytest.fixture
def node_address() -> str:
    """Return an address of this machine that is not loopback, which the API server does not accept as an endpoint."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Chooses a route; sends nothing.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


@pytest.fixture
def installation(
    control_plane: ControlPlane,
    redis_client: redis.Redis,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    node_address: str,
) -> Iterator[Installation]:
    good_fleet(redis_client, due_in=3600)
    namespace = control_plane.namespace("page")
    account = control_plane.service_account(namespace, "page", own_rules())
    control_plane.service_account(namespace, VIEWER, [{**SCORERS, "verbs": ["get"]}])
    values = own_settings() | {"backend": "kube", "kubeconfig": account, "namespace": namespace}
    for name in [name for name in os.environ if name.startswith("DSF_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DSF_NAMESPACE", namespace)
    settings.cache_clear()
    with WebProcess(redis_url, tmp_path / "log", **values, listen_host="0.0.0.0") as page:
        admin = control_plane.session()
        port = {"name": "http", "port": page.port}
        metadata = {"name": "dynamic-scoring-hub"}
        admin.create(SERVICES.path(namespace), {"metadata": metadata, "spec": {"ports": [{**port, "port": 8080}]}})
        pod = {
            "serviceAccountName": "page",
            "automountServiceAccountToken": False,
            "containers": [{"name": "hub", "image": "hub"}],
        }
        labels = {"app": "hub"}
        admin.create(PODS.path(namespace), {"metadata": {"name": "hub-1", "labels": labels}, "spec": pod})
        # The proxy connects only to an address that its pod has.
        status = {"phase": "Running", "podIP": node_address, "podIPs": [{"ip": node_address}]}
        admin.merge(PODS.path(namespace, "hub-1", "status"), {"status": status})
        target = {"kind": "Pod", "namespace": namespace, "name": "hub-1"}
        subsets = [{"addresses": [{"ip": node_address, "targetRef": target}], "ports": [port]}]
        admin.create(ENDPOINTS.path(namespace), {"metadata": metadata, "subsets": subsets})
        yield Installation(control_plane, namespace, page)
    settings.cache_clear()


@pytest.fixture
def dsf(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`dsf("viewer", "status")`: a command of a person who has this role of the chart."""
    kubeconfigs: dict[str, Path] = {}

    def run(role: str, *arguments: str) -> Result:
        if role not in kubeconfigs:
            rules = role_rules(role) if role != "nobody" else []
            kubeconfigs[role] = installation.plane.service_account(installation.namespace, f"a-{role}", rules)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfigs[role]))
        return commandline.dsf(*arguments)

    return run


def test_viewer_reads_through_the_service_proxy(installation: Installation, dsf: Callable[..., Result]) -> None:
    def scores() -> list[str]:
        result = dsf("viewer", "scores", "-o", "json")
        assert result.exit_code == 0, result.output
        return [score["cluster"] for score in json.loads(result.stdout)["scores"]]

    wait_for(lambda: scores() == ["worker01", "worker02"], 20)
    assert SAMPLE in dsf("viewer", "status").stdout
    assert dsf("viewer", "history", SAMPLE, "-c", "worker01").exit_code == 0
    assert dsf("viewer", "schedule", "list").exit_code == 0
    assert dsf("viewer", "changes").exit_code == 0


def test_proxy_of_the_kubeconfig_leads_to_the_api_server(
    installation: Installation, dsf: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wait_for(lambda: dsf("viewer", "scores").exit_code == 0, 20)
    document = json.loads(Path(os.environ["KUBECONFIG"]).read_text())
    with Proxy() as proxy:
        document["clusters"][0]["cluster"]["proxy-url"] = f"http://{proxy.address}"
        proxied = tmp_path / "proxied"
        proxied.write_text(json.dumps(document))
        result = dsf("viewer", "scores", "--kubeconfig", str(proxied), "-o", "json")
        assert result.exit_code == 0, result.output
        assert proxy.asked == [f"CONNECT 127.0.0.1:{installation.plane.port}"]


def test_person_without_rights_is_told_which_to_ask_for(installation: Installation, dsf: Callable[..., Result]) -> None:
    result = dsf("nobody", "status")
    assert result.exit_code == 1
    assert 'cannot create resource "serviceaccounts/token"' in result.stderr
    assert result.stderr.endswith("to read, ask for the ClusterRole dynamic-scoring-framework-viewer\n")
    assert 'cannot get resource "dynamicscorers"' in dsf("nobody", "rescore", SAMPLE).stderr


def test_page_refuses_a_proxied_request_without_a_token_of_the_viewer(installation: Installation) -> None:
    path = f"/api/v1/namespaces/{installation.namespace}/services/dynamic-scoring-hub:http/proxy/api/v1/summary"
    text = installation.plane.kubectl("get", "--raw", path, check=False)
    # The API server removes the token of its own client, so the page sees a request without one.
    assert "asked for the client to provide credentials" in text
