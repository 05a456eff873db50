"""The hub in kubectl's context: reads through the API server, acts as annotations, and errors about missing rights."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from dsf.settings import settings
from tests.support import commandline
from tests.support.httpserver import ScriptedServer, answer
from tests.support.portforwardserver import PortForwardServer

NAMESPACE = "open-cluster-management"
PROXY = f"/api/v1/namespaces/{NAMESPACE}/services/dynamic-scoring-hub:http/proxy"
TOKEN = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/dynamic-scoring-viewer/token"
SCORER = f"/apis/dynamic-scoring.open-cluster-management.io/v1alpha1/namespaces/{NAMESPACE}/dynamicscorers/cpu"
SCORERS = "/apis/dynamic-scoring.open-cluster-management.io/v1alpha1/dynamicscorers"
GROUP = "dynamic-scoring.open-cluster-management.io"
SCORES = {"at": "2026-11-30T06:00:00Z", "scores": [], "total": 0, "continue": None}


def refusal(status: int, message: str) -> tuple[int, Any]:
    """Return an error document of the API server."""
    return status, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": status}


@pytest.fixture
def server() -> Iterator[PortForwardServer]:
    """An API server that grants the viewer's token, and knows the user's name."""
    server = PortForwardServer(target=0)
    server.start()
    server.documents[("POST", TOKEN)] = 201, {"status": {"token": "viewer-token"}}
    user = {"status": {"userInfo": {"username": "ann"}}}
    server.documents[("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews")] = 201, user
    yield server
    server.close()


@pytest.fixture
def kubeconfig(server: PortForwardServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The kubeconfig of KUBECONFIG."""
    for name in [name for name in os.environ if name.startswith("DSF_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, server.port)
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    settings.cache_clear()
    yield path
    settings.cache_clear()


def write_kubeconfig(path: Path, port: int, **cluster: str) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "hub",
        "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "ann"}}],
        "clusters": [{"name": "hub", "cluster": {"server": f"http://127.0.0.1:{port}", **cluster}}],
        "users": [{"name": "ann", "user": {"token": "anns-token"}}],
    }
    path.write_text(yaml.safe_dump(document))


def dsf(*arguments: str) -> Result:
    return commandline.dsf(*arguments)


def test_reads_go_through_the_service_proxy_with_the_viewers_token(server: PortForwardServer, kubeconfig: Path) -> None:
    headers: list[Mapping[str, str]] = []

    def scores(request_headers: Mapping[str, str], _: Any) -> tuple[int, Any]:
        headers.append(request_headers)
        return 200, SCORES

    server.documents[("GET", f"{PROXY}/api/v1/scores")] = scores
    result = dsf("scores", "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["scores"] == []
    assert headers[0]["x-dsf-authorization"] == "Bearer viewer-token"
    assert headers[0]["authorization"] == "Bearer anns-token"


def test_forbidden_proxy_is_replaced_by_a_port_forward(server: PortForwardServer, kubeconfig: Path) -> None:
    server.documents[("GET", f"{PROXY}/api/v1/scores")] = refusal(403, "cannot get resource services/proxy")
    service = {"spec": {"selector": {"app": "hub"}}}
    server.documents[("GET", f"/api/v1/namespaces/{NAMESPACE}/services/dynamic-scoring-hub")] = 200, service
    pods = {"items": [{"metadata": {"name": "hub-1"}, "status": {"phase": "Running"}}]}
    server.documents[("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")] = 200, pods
    with ScriptedServer(answer("no such path", 404)) as page:
        page.script(answer(SCORES), path="/api/v1/scores")
        server.target = page.port
        result = dsf("scores", "-o", "json")
        assert result.exit_code == 0, result.output
        assert page.requests[0].headers["X-Dsf-Authorization"] == "Bearer viewer-token"
    assert f"/api/v1/namespaces/{NAMESPACE}/pods/hub-1/portforward?ports=8080" in server.paths


def test_missing_rights_to_read_are_named_as_kubectl_does(server: PortForwardServer, kubeconfig: Path) -> None:
    forbidden = 'services "dynamic-scoring-hub:http" is forbidden: User "ann" cannot get resource "services/proxy"'
    server.documents[("GET", f"{PROXY}/api/v1/scores")] = refusal(403, forbidden)
    also = refusal(403, 'User "ann" cannot get resource "services"')
    server.documents[("GET", f"/api/v1/namespaces/{NAMESPACE}/services/dynamic-scoring-hub")] = also
    result = dsf("scores")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {forbidden}")
    assert "ask for the ClusterRole dynamic-scoring-framework-viewer" in result.stderr
    server.documents[("POST", TOKEN)] = refusal(403, 'User "ann" cannot create resource "serviceaccounts/token"')
    assert 'cannot create resource "serviceaccounts/token"' in dsf("scores").stderr


def test_page_without_a_running_pod_is_no_matter_of_rights(server: PortForwardServer, kubeconfig: Path) -> None:
    message = 'no endpoints available for service "dynamic-scoring-hub"'
    server.documents[("GET", f"{PROXY}/api/v1/scores")] = refusal(503, message)
    service = {"spec": {"selector": {"app": "hub"}}}
    server.documents[("GET", f"/api/v1/namespaces/{NAMESPACE}/services/dynamic-scoring-hub")] = 200, service
    pods = {"items": [{"metadata": {"name": "hub-1"}, "status": {"phase": "Pending"}}]}
    server.documents[("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")] = 200, pods
    result = dsf("scores")
    assert result.exit_code == 1
    assert message in result.stderr
    assert f"kubectl -n {NAMESPACE} get pods" in result.stderr
    assert "ClusterRole" not in result.stderr


def test_service_without_endpoints_is_reported_as_such(server: PortForwardServer, kubeconfig: Path) -> None:
    service = f"/api/v1/namespaces/{NAMESPACE}/services/dynamic-scoring-hub"
    server.documents[("GET", f"{PROXY}/api/v1/scores")] = refusal(404, 'endpoints "dynamic-scoring-hub" not found')
    server.documents[("GET", service)] = 200, {"spec": {"selector": {"app": "hub"}}}
    server.documents[("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")] = 200, {"items": []}
    stderr = dsf("scores").stderr
    assert stderr.startswith(
        'error: endpoints "dynamic-scoring-hub" not found; and a port-forward in its place: no pod'
    )
    assert "DSF_NAMESPACE" not in stderr
    server.documents[("GET", service)] = refusal(404, 'services "dynamic-scoring-hub" not found')
    assert 'services "dynamic-scoring-hub" not found: is the hub in namespace open-' in dsf("scores").stderr


def test_page_that_refuses_the_viewers_token_is_reported(server: PortForwardServer, kubeconfig: Path) -> None:
    server.documents[("GET", f"{PROXY}/api/v1/scores")] = 401, {"title": "Not known", "status": 401, "detail": "no"}
    assert "it needs this version and web.auth kubernetes" in dsf("scores").stderr


def test_all_namespaces_is_what_reads_show(
    server: PortForwardServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the other options of kubectl, it chooses the kubeconfig.
    monkeypatch.setenv("DSF_REDIS_URL", "redis://127.0.0.1:1/0")
    server.documents[("GET", f"{PROXY}/api/v1/scores")] = 200, SCORES
    for option in ("-A", "--all-namespaces"):
        result = dsf("scores", option, "-o", "json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["scores"] == []
    result = dsf("scores", "-A", "-n", "team-a")
    assert (result.exit_code, result.stderr) == (2, "error: --namespace and --all-namespaces exclude each other\n")


def test_missing_account_of_the_viewer_suggests_another_namespace(server: PortForwardServer, kubeconfig: Path) -> None:
    server.documents[("POST", TOKEN)] = refusal(404, 'serviceaccounts "dynamic-scoring-viewer" not found')
    stderr = dsf("scores").stderr
    assert stderr.startswith('error: serviceaccounts "dynamic-scoring-viewer" not found: is the hub in namespace open-')
    assert "DSF_NAMESPACE names the namespace" in stderr


class Scorer:
    """A DynamicScorer on the API server, with a hub that responds to each act at once."""

    def __init__(self, server: PortForwardServer, outcome: str = "Done") -> None:
        self.annotations: dict[str, str] = {}
        self.outcome = outcome
        self.answers: list[dict[str, Any]] = []
        server.documents[("GET", SCORER)] = lambda *_: (200, self.manifest)
        server.documents[("PATCH", SCORER)] = self._patch

    @property
    def manifest(self) -> dict[str, Any]:
        metadata = {"name": "cpu", "namespace": NAMESPACE, "annotations": self.annotations}
        return {"metadata": metadata, "status": {"acts": self.answers}}

    def _patch(self, _: Mapping[str, str], body: Any) -> tuple[int, Any]:
        before = self.manifest
        self.annotations |= body["metadata"]["annotations"]
        [(annotation, value)] = body["metadata"]["annotations"].items()
        if self.outcome:
            act = annotation.partition("/")[2]
            times = {"handledAt": "2026-11-30T06:00:00Z", "by": "ann", "message": "so it is", "clusters": 1}
            self.answers = [{"act": act, "request": value, "outcome": self.outcome, **times}]
        return 200, {**before, "metadata": self.manifest["metadata"]}


@pytest.mark.parametrize(
    ("arguments", "act", "words"),
    [
        (("rescore", "cpu", "-c", "a", "-c", "b", "--wait"), "rescore", "cluster=a,b at="),
        (("rescore", "cpu", "-l", "region in (eu,us)"), "rescore", "selector='region in (eu,us)' at="),
        (("sync", "cpu"), "sync", "at="),
        (("schedule", "set", "cpu", "--interval", "5m"), "interval", "300s at="),
        (("schedule", "pause", "cpu", "--note", "new disks"), "pause", "note='new disks' at="),
        (("schedule", "pause", "cpu", "--until", "2999-01-01T00:00Z"), "pause", "2999-01-01T00:00:00Z at="),
        (("schedule", "resume", "cpu", "-c", "a"), "resume", "cluster=a at="),
        (("schedule", "reset", "cpu"), "reset", "at="),
    ],
)
def test_acts_are_annotations_by_the_user(
    server: PortForwardServer, kubeconfig: Path, arguments: tuple[str, ...], act: str, words: str
) -> None:
    scorer = Scorer(server)
    result = dsf(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == "cpu: Done: so it is\n"
    [(annotation, value)] = scorer.annotations.items()
    assert annotation == f"{GROUP}/{act}"
    assert value.startswith(words) if not words.startswith("cluster") else words in value + " at="
    [patch] = [path for path in server.paths if path.startswith(f"{SCORER}?")]
    assert patch.endswith("fieldManager=dsf%2Fann")


def test_refused_act_ends_with_its_reason(server: PortForwardServer, kubeconfig: Path) -> None:
    Scorer(server, "Refused")
    result = dsf("schedule", "pause", "cpu")
    assert (result.exit_code, result.stdout) == (1, "cpu: Refused: so it is\n")


def test_rescore_wait_reports_the_end_of_its_timeout(server: PortForwardServer, kubeconfig: Path) -> None:
    Scorer(server, "Running")
    result = dsf("rescore", "cpu", "--wait", "--timeout", "1")
    assert (result.exit_code, result.stdout) == (1, "cpu: Running: so it is\n")
    assert result.stderr == (
        "dsf: not all cycles have ended within 1 s, they go on: `dsf status cpu` says whether the agents run, "
        "`dsf history cpu --cluster CLUSTER` will say how they ended; --timeout waits longer\n"
    )
    assert dsf("rescore", "cpu").stderr == ""


def test_hub_that_does_not_answer_is_reported(
    server: PortForwardServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scorer(server, "")
    result = dsf("sync", "cpu", "--timeout", "1")
    assert result.exit_code == 1
    assert "sync of cpu is requested, and the hub has not answered within 1 s" in result.stderr


def test_missing_right_to_act_is_named_as_kubectl_does(server: PortForwardServer, kubeconfig: Path) -> None:
    Scorer(server)
    forbidden = f'dynamicscorers "cpu" is forbidden: User "ann" cannot patch resource "dynamicscorers" in {NAMESPACE}'
    server.documents[("PATCH", SCORER)] = refusal(403, forbidden)
    result = dsf("rescore", "cpu")
    assert result.exit_code == 1
    expected = f"error: {forbidden}: to act, ask for the ClusterRole dynamic-scoring-framework-editor\n"
    assert result.stderr == expected


def test_unknown_scorer_is_looked_for_in_other_namespaces(server: PortForwardServer, kubeconfig: Path) -> None:
    server.documents[("GET", SCORER)] = refusal(404, "not found")
    server.documents[("GET", SCORERS)] = 200, {"items": [{"metadata": {"name": "cpu", "namespace": "team-a"}}]}
    other = SCORER.replace(f"/{NAMESPACE}/", "/team-a/")
    server.documents[("PATCH", other)] = refusal(403, "no")
    assert dsf("rescore", "cpu").stderr.startswith("error: no: to act, ask for")
    result = dsf("rescore", "cpu", "-n", NAMESPACE)
    assert result.stderr == f"error: no DynamicScorer 'cpu' in namespace {NAMESPACE}; -n names another namespace\n"


def test_proxy_of_the_kubeconfig_is_used(server: PortForwardServer, kubeconfig: Path) -> None:
    server.documents[("GET", f"{PROXY}/api/v1/scores")] = 200, SCORES
    with ScriptedServer(answer("no way", 502)) as proxy:
        write_kubeconfig(kubeconfig, server.port, **{"proxy-url": proxy.url})
        result = dsf("scores")
        assert result.exit_code == 1
        assert proxy.requests


def test_acts_with_only_an_api_url_say_what_is_missing(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DSF_API_URL", "http://127.0.0.1:9")
    settings.cache_clear()
    result = dsf("rescore", "cpu")
    assert result.exit_code == 1
    assert "DSF_API_URL is for reading only. To act, set KUBECONFIG or give --kubeconfig" in result.stderr


def test_commands_that_need_redis_refuse_a_context(kubeconfig: Path) -> None:
    assert "this command needs the hub's Redis" in dsf("credentials", "list", "--context", "hub").stderr
    assert "leave out one" in dsf("scores", "--context", "hub", "--demo", "mine").stderr
