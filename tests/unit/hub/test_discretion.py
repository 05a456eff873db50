"""Authors of scorers in other namespaces see of servers' answers only status and kind, and may name only some."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dsf.api.scorer import FailedCycle
from dsf.api.summary import ScorerSummary
from dsf.api.tokenhosts import TokenHosts
from dsf.api.types import ConfigSyncMode
from dsf.hub.discretion import server_refusal, servers_of, without_answers
from dsf.hub.health import Check, HealthTarget, check
from dsf.hub.names import NameRules
from dsf.hub.summaries import FleetPlan, make_plan
from tests.support.httpserver import Handler, ScriptedServer, answer
from tests.support.wait import PATIENCE
from tests.unit.hub.builders import NOW, cluster, config, refusal, scorer

CANARY = "internal-page-of-the-bank"


def asked(server: ScriptedServer, *, shows_answers: bool, refusal: str = "") -> Check:
    target = HealthTarget(f"{server.url}/config", ConfigSyncMode.Full, shows_answers=shows_answers, refusal=refusal)
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
    for shows_answers in (True, False):
        with ScriptedServer(healthz=healthz, config=config_answer) as server:
            found = asked(server, shows_answers=shows_answers)
        failures = [one for one in (found.health_failure, found.config_failure) if one is not None]
        texts[shows_answers] = " ".join(one.message for one in failures)
        assert failures
    assert CANARY not in texts[False]
    assert kind in texts[False]


def test_forbidden_server_gets_no_request() -> None:
    with ScriptedServer(answer({})) as server:
        found = asked(server, shows_answers=False, refusal="not that one")
    assert found.health_failure is not None
    assert (found.health_failure.reason, found.health_failure.message) == ("HostNotAllowed", "not that one")
    assert server.requests == []


def test_failures_of_cycles_show_kind_and_status() -> None:
    def failure(reason: str, message: str) -> FailedCycle:
        return FailedCycle(cluster="c", stage="fetch", reason=reason, message=message, time=datetime.now(UTC))

    found = without_answers(
        [
            failure("http_error", f"GET http://x/y: status 503: {CANARY}"),
            failure("bad_answer", f"the answer is not JSON; it starts with '{CANARY} status 7777'"),
        ]
    )
    assert [one.message for one in found] == ["http error, status 503", "bad answer"]
    assert [one.reason for one in found] == ["http_error", "bad_answer"]


def planned(hosts: list[str], *, namespace: str = "team", **spec: Any) -> FleetPlan:
    one = scorer("s", metadata={"namespace": namespace}, **spec)
    allowed = TokenHosts(hosts)
    clusters = [cluster("a"), cluster("b")]
    return make_plan([one], config(), clusters, NOW, names=NameRules(home="hub"), scorer_hosts=allowed)


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
    listed = ["scorer.test", "prometheus.test"]
    assert refusal(planned(listed, **spec), "team/s")[0] == ("HostNotAllowed" if wrong else "")
    assert refusal(planned(listed, namespace="hub", **spec), "hub/s") == ("", "")
    assert refusal(planned([], **spec), "team/s") == ("", "")


AUDIENCE = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"
KEY = {"name": "s", "key": "k"}
AWS_ROLE = {"region": "eu-west-1", "roleARN": "arn:aws:iam::123456789012:role/reader"}
ENTRA = {"tenantID": "t", "clientID": "c"}
OAUTH2 = {"clientID": {"value": "c"}, "clientSecret": KEY}


@pytest.mark.parametrize(
    ("methods", "named"),
    [
        ({"oauth2": {**OAUTH2, "tokenURL": "http://inside.test/t"}}, "http://inside.test/t"),
        ({"aws": {**AWS_ROLE, "stsURL": "http://inside.test"}}, "http://inside.test"),
        ({"azure": {**ENTRA, "authorityURL": "https://inside.test"}}, "https://inside.test"),
        ({"gcp": {"audience": AUDIENCE, "tokenURL": "http://inside.test/t"}}, "http://inside.test/t"),
        ({"gcp": {"audience": AUDIENCE, "credentialsURL": "http://inside.test"}}, "http://inside.test"),
        ({"gcp": {"key": KEY, "tokenURL": "http://inside.test/t"}}, "http://inside.test/t"),
        # The clouds' own servers, which no author chose.
        ({"aws": AWS_ROLE}, None),
        ({"azure": ENTRA}, None),
        ({"gcp": {"audience": AUDIENCE}}, None),
        ({"gcp": {"key": KEY}}, None),
    ],
)
def test_token_servers_obey_the_list(methods: dict[str, Any], named: str | None) -> None:
    values = {"name": "s", "scoreName": "s", "scoringEndpoint": "http://scorer.test/scoring"}
    told = ScorerSummary.model_validate(values | {"scoringAccess": {"methods": methods}})
    assert told.scoring_access is not None
    assert told.scoring_access.problem == ""
    assert servers_of(told) == ["http://scorer.test/scoring", *([named] if named else [])]
    assert bool(server_refusal(TokenHosts(["scorer.test"]), servers_of(told))) == (named is not None)


def test_host_template_is_checked_per_cluster() -> None:
    host = "http://${cluster}.test"
    plan = planned(["scorer.test", "a.test"], source={"host": host, **QUERY})
    [one] = plan.scorers.values()
    assert plan.clusters_of(one) == ["a"]
    assert one.obstacles["b"].reason == "HostNotAllowed"
    assert "http://b.test" in one.obstacles["b"].message


def test_without_a_list_every_server_may_be_named() -> None:
    assert server_refusal(TokenHosts(), ["http://x"]) == ""
    assert "http://y" in server_refusal(TokenHosts(["x"]), ["http://x/a", "http://y/b?c"])
