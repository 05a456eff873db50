"""A real agent process that reads its ConfigMap and tokens from a real API server, with rights by name only."""

from __future__ import annotations

import base64
import json
import math
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsf.agent.kube import KubeConfig
from dsf.api.authentication import CaKind
from dsf.api.summary import parse_summaries
from dsf.api.types import CREDENTIALS_NAME, MANAGED_BY, MANAGED_BY_LABEL, TOKEN_ACCOUNT, USABLE_FOR
from dsf.api.urls import TokenHosts
from dsf.auth.secrets import SecretError, Token, Use
from dsf.hub.manifestwork import make_manifest_work, make_part
from dsf.kube.resources import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS
from dsf.kube.session import ForbiddenError, Session
from dsf.settings import Settings
from tests.integration.agent.conftest import SERIES, AgentFactory
from tests.integration.agent.kube.conftest import SummaryFactory
from tests.integration.agent.kube.spoke import KubeAgent, Spoke
from tests.support import chart
from tests.support.apirelay import ApiServerRelay
from tests.support.authenticatedquery import server_context
from tests.support.controlplane import ControlPlane
from tests.support.httpserver import Exchange, ScriptedServer, matrix
from tests.support.tlsca import TestCa
from tests.support.wait import PATIENCE, wait_for

SCORERS = "dynamic_scoring_config_scorers"
VALID = "dynamic_scoring_config_valid"
TOKEN = {"sourceEndpointAuthName": "prometheus", "sourceEndpointAuthKey": "token"}
#: Seconds within which a change takes effect.
AT_ONCE = 1.0


def bearer(source: ScriptedServer) -> str:
    """Return the token of the newest request."""
    return source.requests[-1].headers["Authorization"]


def test_agent_applies_a_changed_configmap_at_once(agent: KubeAgent, spoke: Spoke, summarise: SummaryFactory) -> None:
    agent.tick("sample")
    assert agent.result().outcome == "ok"
    assert agent.metrics("dynamic_score{")
    spoke.deliver(summarise(**TOKEN), summarise("second"))
    wait_for(lambda: agent.value(SCORERS) == 2, AT_ONCE)
    agent.tick("second")
    assert agent.result().scorer == "second"
    assert len(agent.metrics("dynamic_score{")) == 2


def test_without_a_configmap_nothing_runs(agent: KubeAgent, spoke: Spoke, summarise: SummaryFactory) -> None:
    agent.tick("sample")
    assert agent.result().outcome == "ok"
    spoke.withdraw()
    wait_for(lambda: not agent.metrics("dynamic_score{"), AT_ONCE)
    wait_for(lambda: agent.value(SCORERS) == 0)

    def reason() -> str:
        agent.tick("sample", expires=2)
        return agent.result().reason

    # An expired tick is not a failure of the scorer.
    assert wait_for(lambda: (result_reason := reason()) != "expired" and result_reason) == "unknown_scorer"
    spoke.deliver(summarise())
    wait_for(lambda: agent.value(SCORERS) == 1, AT_ONCE)
    agent.tick("sample")
    assert agent.result().outcome == "ok"


def test_agent_applies_token_rotation_and_removal_at_once(
    agent: KubeAgent, spoke: Spoke, source: ScriptedServer
) -> None:
    agent.tick("sample")
    assert agent.result().outcome == "ok"
    assert bearer(source) == "Bearer first-token"
    spoke.secret("prometheus", {"token": "second-token"})

    def is_new() -> bool:
        agent.tick("sample")
        return agent.result().outcome == "ok" and bearer(source) == "Bearer second-token"

    wait_for(is_new, AT_ONCE)
    requests_before, outcomes = len(source.requests), []
    spoke.secret("prometheus", None)

    def is_refused() -> str:
        agent.tick("sample")
        result = agent.result()
        outcomes.append(result.outcome)
        return result.message if result.reason == "secret_missing" else ""

    message = wait_for(is_refused, AT_ONCE)
    assert f"create it in namespace {spoke.namespace}" in message
    # Only cycles that did not know of it yet sent requests.
    assert len(source.requests) - requests_before == outcomes.count("ok") == len(outcomes) - 1
    spoke.secret("prometheus", {"token": "third-token"})
    wait_for(lambda: is_refused() == "" and bearer(source) == "Bearer third-token", AT_ONCE)
    assert "-token" not in agent.log()


def test_agent_applies_a_rotated_ca_and_client_certificate_at_once(
    spoke: Spoke, make_agent: AgentFactory, summarise: SummaryFactory, tmp_path: Path
) -> None:
    ca, other, clients = (TestCa(tmp_path / name, name) for name in ("ca", "other", "clients"))
    common_names: list[str] = []

    def handle(exchange: Exchange) -> None:
        connection = exchange.http.connection
        assert isinstance(connection, ssl.SSLSocket)
        subject: Any = (connection.getpeercert() or {})["subject"]
        common_names.append(dict(subject[0])["commonName"])
        matrix(SERIES)(exchange)

    def show(name: str) -> None:
        certificate = clients.issue(name)
        spoke.secret("client", {"tls.crt": certificate.cert.read_text(), "tls.key": certificate.key.read_text()})

    def outcome() -> str:
        agent.tick("sample")
        result = agent.result()
        return result.reason or f"{result.outcome} {common_names[-1]}"

    show("first")
    spoke.config_map("private-ca", ca_crt=other.cert.read_text())
    spoke.allow("client", config_maps=["private-ca"])
    with ScriptedServer(handle, tls=server_context(ca.issue("127.0.0.1"), clients)) as source:
        access = {"methods": {"clientCertificate": {"secretName": "client"}}, "tls": {"caRef": {"name": "private-ca"}}}
        url = f"{source.url}/api/v1/query_range"
        spoke.deliver(summarise(sourceEndpoint=url, sourceAccess=access, maxRetries=0))
        agent = make_agent(KubeAgent, spoke=spoke)
        agent.start()
        assert outcome() == "connection_failed"
        spoke.config_map("private-ca", ca_crt=ca.cert.read_text())
        wait_for(lambda: outcome() == "ok first", AT_ONCE)
        show("second")
        wait_for(lambda: outcome() == "ok second", AT_ONCE)
        spoke.config_map("private-ca", ca_crt=other.cert.read_text())
        wait_for(lambda: outcome() == "connection_failed", AT_ONCE)
        spoke.config_map("private-ca", ca_crt=ca.cert.read_text())
        wait_for(lambda: outcome() == "ok second", AT_ONCE)
        spoke.secret("client", None)
        wait_for(lambda: outcome() == "secret_missing", AT_ONCE)
    assert "PRIVATE KEY" not in agent.log()


def test_forbidden_secret_names_the_missing_rule(
    agent: KubeAgent, spoke: Spoke, summarise: SummaryFactory, source: ScriptedServer
) -> None:
    spoke.secret("other", {"token": "other-token"})
    spoke.deliver(summarise(sourceEndpointAuthName="other", sourceEndpointAuthKey="token"))
    wait_for(lambda: "configuration loaded" in agent.log(), 5)
    refusal = wait_for(lambda: _refusal(agent), 5)
    assert "get, list and watch of secrets with resourceNames [other]" in refusal
    assert spoke.namespace in refusal
    assert "403" in refusal
    # No restart and no back-off: the next cycle after the right was granted has the token.
    spoke.allow("prometheus", "other")

    def works() -> bool:
        agent.tick("sample")
        return agent.result().outcome == "ok"

    wait_for(works, 3, interval=0.2)
    assert bearer(source) == "Bearer other-token"


def _refusal(agent: KubeAgent) -> str:
    began = time.monotonic()
    agent.tick("sample", expires=600)
    result = agent.result()
    # A cycle that cannot succeed must not occupy a thread for its whole time.
    assert time.monotonic() - began < PATIENCE
    return result.message if result.reason == "secret_missing" else ""


def test_token_is_withheld_from_a_server_that_its_secret_does_not_name(
    agent: KubeAgent, spoke: Spoke, source: ScriptedServer
) -> None:
    requests_before, outcomes = len(source.requests), []
    spoke.mark("prometheus", labels={USABLE_FOR: "prometheus.example.com"})

    def refusal() -> str:
        agent.tick("sample")
        result = agent.result()
        outcomes.append(result.outcome)
        return result.message if result.reason == "secret_refused" else ""

    message = wait_for(refusal, AT_ONCE)
    assert f"not released for {source.url}, so it was not sent there" in message
    assert USABLE_FOR in message
    assert "spokeSetting.agent.tokenSecrets" in message
    assert len(source.requests) - requests_before == outcomes.count("ok") == len(outcomes) - 1
    # A label has no place for a port or for several servers: an annotation has.
    spoke.mark("prometheus", labels={USABLE_FOR: None}, annotations={USABLE_FOR: f"a.example:1, {source.url}"})
    wait_for(lambda: refusal() == "", AT_ONCE)
    assert bearer(source) == "Bearer first-token"


def test_agent_credentials_are_not_released(
    make_agent: AgentFactory, control_plane: ControlPlane, summarise: SummaryFactory, source: ScriptedServer
) -> None:
    # With more rights than the chart gives, and marked by somebody who should have known better.
    spoke = Spoke(control_plane, CREDENTIALS_NAME, "renamed")
    for name in (CREDENTIALS_NAME, "renamed"):
        spoke.secret(name, {"signing-key": "1:" + "ab" * 32, "redis-password": "canary"})
    spoke.mark("renamed", labels={MANAGED_BY_LABEL: MANAGED_BY})
    keys = {"sourceEndpointAuthKey": "redis-password"}
    spoke.deliver(
        summarise("by-name", sourceEndpointAuthName=CREDENTIALS_NAME, **keys),
        summarise("by-label", sourceEndpointAuthName="renamed", **keys),
        summarise("scoring", scoringEndpointAuthName=CREDENTIALS_NAME, scoringEndpointAuthKey="signing-key"),
    )
    agent = make_agent(KubeAgent, spoke=spoke)
    agent.start()
    for name in ("by-name", "by-label", "scoring"):
        agent.tick(name)
        result = agent.result()
        assert (result.outcome, result.reason) == ("error", "secret_refused")
        assert "own" in result.message
    assert not [request for request in source.requests if "Authorization" in request.headers]


def test_chart_role_denies_the_agent_its_own_secrets(
    control_plane: ControlPlane, settings_factory: Callable[..., Settings]
) -> None:
    spoke = Spoke(control_plane)
    values = {"spokeSetting": {"agent": {"tokenSecrets": ["prometheus"]}}}
    for rendered in (values, {}):
        spoke.grant(chart.find_object(chart.agent_objects(chart.render(rendered)), "Role")["rules"])
        spoke.secret(CREDENTIALS_NAME, {"signing-key": "1:" + "ab" * 32})
        session = Session.load(spoke.kubeconfig)
        try:
            for path in (SECRETS.path(spoke.namespace, CREDENTIALS_NAME), SECRETS.path(spoke.namespace)):
                with pytest.raises(ForbiddenError):
                    session.get(path)
        finally:
            session.close()


def test_invalid_summaries_keep_the_last_valid_ones(agent: KubeAgent, spoke: Spoke, summarise: SummaryFactory) -> None:
    assert agent.value(VALID) == 1
    spoke.deliver_text(json.dumps([{"name": "sample"}]))
    wait_for(lambda: agent.value(VALID) == 0, AT_ONCE)
    wait_for(lambda: "configuration cannot be used" in agent.log())
    assert agent.log().count("configuration cannot be used") == 1
    agent.tick("sample")
    assert agent.result().outcome == "ok"
    spoke.deliver(summarise("second"))
    wait_for(lambda: agent.value(VALID) == 1, AT_ONCE)
    wait_for(lambda: agent.value(SCORERS) == 1)


def test_agent_survives_an_outage_of_the_api_server(
    control_plane: ControlPlane, make_agent: AgentFactory, summarise: SummaryFactory, source: ScriptedServer
) -> None:
    spoke = Spoke(control_plane, "prometheus")
    spoke.secret("prometheus", {"token": "first-token"})
    spoke.deliver(summarise(**TOKEN))
    with ApiServerRelay(control_plane, spoke.kubeconfig) as relay:
        spoke.kubeconfig = relay.kubeconfig
        agent = make_agent(KubeAgent, spoke=spoke)
        agent.start()
        agent.tick("sample")
        assert agent.result().outcome == "ok"

        relay.cut()
        # The agent has everything that it needs.
        agent.tick("sample")
        assert agent.result().outcome == "ok"
        spoke.secret("prometheus", {"token": "second-token"})
        spoke.deliver(summarise(**TOKEN), summarise("second"))
        relay.restore()
        # The client's back-off while the server was down.
        wait_for(lambda: agent.value(SCORERS) == 2, 10)

        def has_new_token() -> bool:
            agent.tick("sample")
            return agent.result().outcome == "ok" and bearer(source) == "Bearer second-token"

        wait_for(has_new_token, 10, interval=0.2)
        wait_for(lambda: agent.value(VALID) == 1, 5)


def test_secret_is_no_longer_watched_after_its_last_scorer_is_removed(
    spoke: Spoke, summarise: SummaryFactory, settings_factory: Callable[..., Settings], source: ScriptedServer
) -> None:
    spoke.secret("prometheus", {"token": "a-token"})
    spoke.deliver(summarise(**TOKEN))
    config = KubeConfig(settings_factory(kubeconfig=spoke.kubeconfig, agent_namespace=spoke.namespace))
    config.start()
    try:
        wait_for(lambda: set(config.get_summaries()) == {"sample"})
        assert config.secrets.get_secret("prometheus", "token", Use((source.url,))) == b"a-token"
        assert config.secrets.watched == {"prometheus"}
        spoke.deliver(summarise())
        wait_for(lambda: not config.secrets.watched, AT_ONCE)
    finally:
        config.stop()


#: (type, keys, whether a label lets it be sent). Kubernetes wants these keys.
TYPES = [
    ("kubernetes.io/tls", {"tls.crt": "eA==", "tls.key": "eA=="}, False),
    ("kubernetes.io/dockerconfigjson", {".dockerconfigjson": "e30="}, False),
    ("kubernetes.io/dockercfg", {".dockercfg": "e30="}, False),
    ("kubernetes.io/service-account-token", {"token": "eA=="}, True),
]


@pytest.mark.parametrize(("kind", "data", "is_sent"), TYPES)
def test_secret_type_determines_whether_a_label_releases_the_secret(
    spoke: Spoke, settings_factory: Callable[..., Settings], kind: str, data: dict[str, str], is_sent: bool
) -> None:
    url = "http://127.0.0.1/"
    account = {"kubernetes.io/service-account.name": "reader"}
    spoke.session.create(SERVICE_ACCOUNTS.path(spoke.namespace), {"metadata": {"name": "reader"}})
    spoke.allow("bound", "released")
    for name, labels in (("bound", {}), ("released", {USABLE_FOR: "127.0.0.1"})):
        metadata = {"name": name, "labels": labels, "annotations": account}
        spoke.session.create(SECRETS.path(spoke.namespace), {"metadata": metadata, "type": kind, "data": data})
    config = KubeConfig(settings_factory(kubeconfig=spoke.kubeconfig, agent_namespace=spoke.namespace))
    config.start()
    key = list(data)[-1]
    try:
        # A ScoringAuthentication alone releases none of them.
        with pytest.raises(SecretError, match=r"never sent anywhere|not released for http://127\.0\.0\.1"):
            config.secrets.get_secret("bound", key, Use((url,), TokenHosts(["127.0.0.1"])))
        if is_sent:
            assert config.secrets.get_secret("released", key, Use((url,))) == b"x"
        else:
            with pytest.raises(SecretError, match="never sent anywhere"):
                config.secrets.get_secret("released", key, Use((url,)))
    finally:
        config.stop()


def test_delivered_role_is_sufficient(
    spoke: Spoke, summarise: SummaryFactory, settings_factory: Callable[..., Settings], source: ScriptedServer
) -> None:
    source_access = {
        "methods": {"serviceAccountToken": {"audience": "thanos"}},
        "tls": {"caRef": {"name": "private-ca"}},
        "authentication": "thanos",
        "allowedHosts": ["127.0.0.1"],
    }
    (summary,) = parse_summaries(json.dumps([summarise(sourceAccess=source_access)]))
    spoke.session.create(SERVICE_ACCOUNTS.path(spoke.namespace), {"metadata": {"name": TOKEN_ACCOUNT}})
    pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----"
    spoke.session.create(
        CONFIG_MAPS.path(spoke.namespace), {"metadata": {"name": "private-ca"}, "data": {"ca.crt": f"x\n{pem}\ny"}}
    )
    work = make_manifest_work("c", spoke.namespace, [make_part(summary)])
    role = work["spec"]["workload"]["manifests"][2]
    config = KubeConfig(settings_factory(kubeconfig=spoke.kubeconfig, agent_namespace=spoke.namespace))
    try:
        with pytest.raises(SecretError, match="serviceaccounts/token") as caught:
            config.secrets.request_account_token("thanos", 600, math.inf)
        assert caught.value.reason == "auth_failed"
        spoke.grant(role["rules"])

        def token() -> Token | None:
            try:
                return config.secrets.request_account_token("thanos", 600, math.inf)
            except SecretError:
                # Rights count a moment after they are granted.
                return None

        value, seconds = wait_for(token, AT_ONCE)
        claims = json.loads(base64.urlsafe_b64decode(value.split(".")[1] + "=="))
        assert (claims["aud"], seconds) == (["thanos"], 600)
        # The ConfigMap provides only certificates.
        assert config.secrets.get_certificates(CaKind.ConfigMap, "private-ca", "ca.crt").decode() == f"{pem}\n"
        with pytest.raises(SecretError, match="ConfigMap 'other' is missing"):
            config.secrets.get_certificates(CaKind.ConfigMap, "other", "ca.crt")
    finally:
        config.stop()
