"""Scorers of other namespaces see only status and kind of responses, and may use only allowed hosts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dsf.api.scorer import FailedCycle
from dsf.api.summary import ScorerSummary
from dsf.api.types import ConfigSyncMode
from dsf.api.urls import TokenHosts
from dsf.hub.admission import NameRules, find_server_refusal, list_servers, remove_response_texts
from dsf.hub.health import CheckResult, HealthTarget, check
from dsf.hub.plan import FleetPlan, make_plan
from tests.support.httpserver import Handler, ScriptedServer, answer
from tests.support.wait import PATIENCE
from tests.unit.hub.builders import NOW, cluster, config, refusal, scorer

CANARY = "internal-page-of-the-bank"


def check_server(server: ScriptedServer, *, shows_responses: bool, refusal: str = "") -> CheckResult:
    target = HealthTarget(f"{server.url}/config", ConfigSyncMode.Full, shows_responses=shows_responses, refusal=refusal)
    return check(target, timeout=PATIENCE)


@pytest.mark.parametrize(
    ("healthz", "config_answer", "kind"),
    [
        (answer(CANARY, 500), answer(CANARY), "status 500, not 200"),
        (answer(CANARY, 401), answer(CANARY), "status 401, not 200"),
        (answer(CANARY, 302, Location=f"http://x/{CANARY}"), answer(CANARY), "redirect"),
        (answer({}), answer(CANARY), "no valid configuration"),
        (answer({}), answer([CANARY]), "no valid configuration"),
        (answer({}), answer({CANARY: 1}), "no valid configuration"),
        (answer({}), answer({"name": 1, "source": {"type": CANARY}, "scoring": CANARY}), "no valid configuration"),
        (answer({}), answer(CANARY, 403), "status 403, not 200"),
    ],
)
def test_status_hides_server_pages_from_other_namespaces(healthz: Handler, config_answer: Handler, kind: str) -> None:
    texts = {}
    for shows_responses in (True, False):
        with ScriptedServer(healthz=healthz, config=config_answer) as server:
            result = check_server(server, shows_responses=shows_responses)
        failures = [
            failed_request
            for failed_request in (result.health_failure, result.config_failure)
            if failed_request is not None
        ]
        texts[shows_responses] = " ".join(failed_request.message for failed_request in failures)
        assert failures
    assert CANARY not in texts[False]
    assert kind in texts[False]


def test_forbidden_server_gets_no_request() -> None:
    with ScriptedServer(answer({})) as server:
        result = check_server(server, shows_responses=False, refusal="not that one")
    assert result.health_failure is not None
    assert (result.health_failure.reason, result.health_failure.message) == ("HostNotAllowed", "not that one")
    assert server.requests == []


def test_failures_of_cycles_show_kind_and_status() -> None:
    def failure(reason: str, message: str) -> FailedCycle:
        return FailedCycle(cluster="c", stage="fetch", reason=reason, message=message, time=datetime.now(UTC))

    redacted_failures = remove_response_texts(
        [
            failure("http_error", f"GET http://x/y: status 503: {CANARY}"),
            failure("bad_answer", f"the answer is not JSON; it starts with '{CANARY} status 7777'"),
        ]
    )
    assert [failed_cycle.message for failed_cycle in redacted_failures] == ["http error, status 503", "bad answer"]
    assert [failed_cycle.reason for failed_cycle in redacted_failures] == ["http_error", "bad_answer"]


def plan_of_scorer(hosts: list[str], *, namespace: str = "team", **spec: Any) -> FleetPlan:
    dynamic_scorer = scorer("s", metadata={"namespace": namespace}, **spec)
    allowed = TokenHosts(hosts)
    clusters = [cluster("a"), cluster("b")]
    return make_plan([dynamic_scorer], config(), clusters, NOW, names=NameRules(home="hub"), scorer_hosts=allowed)


QUERY = {"params": {"query": "up", "range": 60, "step": 5}}


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ({}, False),
        ({"configURL": "http://other.test/config"}, True),
        ({"source": {"host": "http://prometheus.test", **QUERY}}, False),
        ({"source": {"host": "http://other.test", **QUERY}}, True),
        ({"scoring": {"host": "http://other.test", "params": {"name": "s", "interval": 5}}}, True),
        ({"sources": [{"name": "a", **QUERY}, {"name": "b", "host": "http://other.test", **QUERY}]}, True),
    ],
)
def test_scorers_of_other_namespaces_name_only_listed_servers(spec: dict[str, Any], wrong: bool) -> None:
    allowed_hosts = ["scorer.test", "prometheus.test"]
    assert refusal(plan_of_scorer(allowed_hosts, **spec), "team/s")[0] == ("HostNotAllowed" if wrong else "")
    assert refusal(plan_of_scorer(allowed_hosts, namespace="hub", **spec), "hub/s") == ("", "")
    assert refusal(plan_of_scorer([], **spec), "team/s") == ("", "")


AUDIENCE = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"
KEY = {"name": "s", "key": "k"}
AWS_ROLE = {"region": "eu-west-1", "roleARN": "arn:aws:iam::123456789012:role/reader"}
ENTRA = {"tenantID": "t", "clientID": "c"}
OAUTH2 = {"clientID": {"value": "c"}, "clientSecret": KEY}


@pytest.mark.parametrize(
    ("methods", "token_server"),
    [
        ({"oauth2": {**OAUTH2, "tokenURL": "http://inside.test/t"}}, "http://inside.test/t"),
        ({"aws": {**AWS_ROLE, "stsURL": "http://inside.test"}}, "http://inside.test"),
        ({"azure": {**ENTRA, "authorityURL": "https://inside.test"}}, "https://inside.test"),
        ({"gcp": {"audience": AUDIENCE, "tokenURL": "http://inside.test/t"}}, "http://inside.test/t"),
        ({"gcp": {"audience": AUDIENCE, "credentialsURL": "http://inside.test"}}, "http://inside.test"),
        ({"gcp": {"key": KEY, "tokenURL": "http://inside.test/t"}}, "http://inside.test/t"),
        # Servers of the clouds are not chosen by the author.
        ({"aws": AWS_ROLE}, None),
        ({"azure": ENTRA}, None),
        ({"gcp": {"audience": AUDIENCE}}, None),
        ({"gcp": {"key": KEY}}, None),
    ],
)
def test_token_servers_obey_the_list(methods: dict[str, Any], token_server: str | None) -> None:
    values = {"name": "s", "scoreName": "s", "scoringEndpoint": "http://scorer.test/scoring"}
    summary = ScorerSummary.model_validate(values | {"scoringAccess": {"methods": methods}})
    assert summary.scoring_access is not None
    assert summary.scoring_access.problem == ""
    assert list_servers(summary) == ["http://scorer.test/scoring", *([token_server] if token_server else [])]
    assert bool(find_server_refusal(TokenHosts(["scorer.test"]), list_servers(summary))) == (token_server is not None)


def test_host_template_is_checked_per_cluster() -> None:
    host = "http://${cluster}.test"
    plan = plan_of_scorer(["scorer.test", "a.test"], source={"host": host, **QUERY})
    [scorer_plan] = plan.scorers.values()
    assert plan.list_clusters(scorer_plan) == ["a"]
    assert scorer_plan.obstacles["b"].reason == "HostNotAllowed"
    assert "http://b.test" in scorer_plan.obstacles["b"].message


def test_without_a_list_every_server_may_be_named() -> None:
    assert find_server_refusal(TokenHosts(), ["http://x"]) == ""
    assert "http://y" in find_server_refusal(TokenHosts(["x"]), ["http://x/a", "http://y/b?c"])
