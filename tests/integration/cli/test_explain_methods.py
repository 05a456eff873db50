"""`dsf explain` shows a request by every method of authentication in docs/sources.md, without its secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.agent.secrets import FileSecrets
from dsf.settings import Settings
from tests.integration.cli.conftest import Dsf, loaded
from tests.support import amazon, cloudservers
from tests.support.authenticatedquery import SourceAccessHarness, TokenServer, make_secret_ref, server_context
from tests.support.cloudservers import Clouds, Cluster
from tests.support.httpserver import ScriptedServer, answer, matrix
from tests.support.tlsca import TestCa

PAGE = (Path(__file__).parents[3] / "docs" / "sources.md").read_text(encoding="utf-8")
#: The first column of the table of methods.
METHODS = re.findall(
    r"^\| (`.*?) \| ", PAGE.partition("| method | what is sent |")[2].partition("\n\n")[0], re.MULTILINE
)
SERIES = {"metric": {"node": "n1"}, "values": [[1, "1"]]}
RESULTS = {"results": [{"metric": {"node": "n1"}, "score": 1}]}
CANARY = "canary-of-"
BEARER = "Authorization: Bearer ***"


@dataclass
class ExplainServers:
    """The servers: sources with and without TLS, of tokens, clouds."""

    bed: SourceAccessHarness
    ca: TestCa
    source: ScriptedServer
    secure: ScriptedServer
    scorer: ScriptedServer
    tokens: TokenServer
    clouds: Clouds
    cluster: Cluster

    def secrets(self) -> list[str]:
        """Return all secrets: those in Secrets, and tokens that were obtained with them."""
        tokens = [f"token-{number}-of-server" for number in range(1, 9)]
        clouds = [f"cl0ud-token-{number}" for number in range(1, 9)]
        return [
            CANARY,
            amazon.KEY,
            cloudservers.POD_TOKEN,
            *cloudservers.AWS_KEY[1:],
            *tokens,
            *clouds,
            *self.cluster.issued_tokens,
        ]


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> TestCa:
    """The CA of all servers with TLS, and of clients."""
    return TestCa(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """Its key takes a while."""
    return Cluster()


@pytest.fixture
def world(
    dsf: Dsf, tmp_path: Path, ca: TestCa, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ExplainServers]:
    """All Secrets are there."""
    monkeypatch.setenv("DSF_OUT_DIR", str(tmp_path / "_out"))
    # Replaces the API server of the managed cluster, which issues tokens to an agent in a pod.
    monkeypatch.setattr(FileSecrets, "request_account_token", lambda _, *arguments: cluster.token(*arguments))
    context = server_context(ca.issue("127.0.0.1"), None)
    explain_world = ExplainServers(
        SourceAccessHarness(tmp_path / "_secrets" / "worker01", Settings()),
        ca,
        ScriptedServer(matrix(SERIES)),
        ScriptedServer(matrix(SERIES), tls=context),
        ScriptedServer(answer(RESULTS)),
        TokenServer(f"{CANARY}client"),
        Clouds(cluster, context),
        cluster,
    )
    explain_world.bed.put("token", token=f"{CANARY}token", user=f"{CANARY}user", password=f"{CANARY}password")
    explain_world.bed.put("client", secret=f"{CANARY}client")
    explain_world.bed.put("amazon", secret=amazon.KEY)
    explain_world.bed.put("ca", ca_crt=ca.cert.read_bytes())
    explain_world.bed.put_certificate("certificate", ca.issue("agent"))
    key = {"type": "service_account", "client_email": cloudservers.KEY_OF, "token_uri": "https://evil.example"}
    private = cluster.key.as_pem(private=True).decode()
    explain_world.bed.put("google", key_json=json.dumps({**key, "private_key": private, "private_key_id": "1"}))
    pod = ScriptedServer(cloudservers.serve_pod_keys(explain_world.clouds))
    cloudservers.as_pod(monkeypatch, pod, tmp_path / "pod-token")
    with (
        explain_world.source,
        explain_world.secure,
        explain_world.scorer,
        explain_world.tokens.server,
        explain_world.clouds.server,
        pod,
    ):
        yield explain_world


def cloud(name: str, **options: Any) -> Callable[[ExplainServers], dict[str, Any]]:
    """Return a workload identity."""
    return lambda world: {
        name: {**cloudservers.AgentAndClouds(world.bed, world.clouds, {}).methods(name)[name], **options}
    }


#: Row of the table -> (methods, lines that are shown, whether the source has TLS).
CASES: dict[str, tuple[Callable[[ExplainServers], dict[str, Any]], list[str], bool]] = {
    "`tokenSecretRef`": (lambda _: {"tokenSecretRef": {"name": "token", "key": "token"}}, [BEARER], False),
    "`basic`": (
        lambda _: {"basic": {"username": {"value": "reader"}, "password": {"name": "token", "key": "password"}}},
        ["Authorization: Basic reader:***"],
        False,
    ),
    "`clientCertificate`": (
        lambda _: {"clientCertificate": {"secretName": "certificate"}},
        ["client certificate of Secret certificate, valid until 2"],
        True,
    ),
    "`headers`": (
        lambda _: {
            "headers": [{"name": "X-Scope-OrgID", "value": "team-a"}, {"name": "X-Api-Key", **make_secret_ref("token")}]
        },
        ["X-Scope-OrgID: team-a", "X-Api-Key: ***"],
        False,
    ),
    "`queryParameters`": (
        lambda _: {
            "queryParameters": [{"name": "tenant", "value": "a"}, {"name": "api_key", **make_secret_ref("token")}]
        },
        ["?tenant=a", "?api_key=***"],
        False,
    ),
    "`oauth2`": (
        lambda world: {
            "oauth2": {
                "tokenURL": f"{world.tokens.server.url}/token",
                "clientID": {"value": "client"},
                "clientSecret": {"name": "client", "key": "secret"},
            }
        },
        [BEARER],
        False,
    ),
    "`aws`": (
        lambda _: {"aws": amazon.AWS},
        ["Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/eu-west-1/aps/aws4_request, Signature=***"],
        False,
    ),
    "`gcp` with a key": (
        lambda world: {
            "gcp": {"key": {"name": "google", "key": "key.json"}, "tokenURL": f"{world.clouds.server.url}/key/token"}
        },
        [BEARER],
        True,
    ),
    "`tls`": (lambda _: {}, ["the CA in key 'ca.crt' of Secret 'ca' is trusted, too"], True),
    "`serviceAccountToken`": (lambda _: {"serviceAccountToken": {"audience": "thanos"}}, [BEARER], False),
    "`azure`": (cloud("azure"), [BEARER], True),
    "`gcp`": (cloud("gcp"), [BEARER], True),
    "`aws` with `roleARN`": (cloud("aws"), ["/eu-west-1/aps/aws4_request, Signature=***"], True),
    "`aws` with `podIdentity`": (
        lambda _: cloudservers.POD,
        ["Credential=ASIAEXAMPLE/eu-west-1/aps/aws4_request, Signature=***"],
        False,
    ),
}


def test_documented_methods_are_shown_by_explain() -> None:
    assert list(CASES) == METHODS


def deliver(world: ExplainServers, name: str) -> ScriptedServer:
    """Return a scorer with a source of this method and one without, and the server of the first."""
    methods, _, is_secure = CASES[name]
    server = world.secure if is_secure else world.source
    access = {"methods": methods(world), "tls": {"caRef": {"kind": "Secret", "name": "ca"}} if is_secure else None}
    source_fields = {"sourceType": "Prometheus", "sourceQuery": "up", "sourceRange": 60, "sourceStep": 15}
    summary = {
        "name": "one",
        "scoreName": "one",
        "scoringEndpoint": f"{world.scorer.url}/scoring",
        "scoringInterval": 10,
        "scoreDestination": "AddOnPlacementScore",
        "scoreDimensionFormat": "${node}",
        "timeoutSeconds": 60,
        **source_fields,
        "sourceEndpoint": f"{server.url}/api/v1/query_range",
        "sourceAccess": {key: value for key, value in access.items() if value is not None},
    }
    cluster = world.bed.folder.parents[1] / "_out" / "clusters" / "worker01"
    cluster.mkdir(parents=True)
    manifest = {"kind": "ConfigMap", "data": {"summaries": json.dumps([summary])}}
    (cluster / "dynamic-scoring-config.yaml").write_text(yaml.safe_dump(manifest))
    return server


@pytest.mark.parametrize("name", CASES)
def test_explain_shows_sent_requests_without_secrets(dsf: Dsf, world: ExplainServers, name: str) -> None:
    server = deliver(world, name)
    table = dsf("explain", "one", "--cluster", "worker01")
    assert table.exit_code == 0, table.output
    report = loaded(dsf("explain", "one", "--cluster", "worker01", "-o", "json"))
    (query,) = report["queries"]
    assert query["url"].startswith(f"{server.url}/api/v1/query_range?query=up&start=")
    for line in CASES[name][1]:
        assert any(line in shown_line for shown_line in query["sent"]), query["sent"]
        assert line in " ".join(table.stdout.split())
    for secret in world.secrets():
        assert secret not in table.output + json.dumps(report)
    assert [request.path for request in server.requests] == ["/api/v1/query_range"] * 2
