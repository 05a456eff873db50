from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from dsf.api.resolve import MAX_SCORE_NAME_CHARACTERS, ResolveReason, resolve
from dsf.api.score import MAX_OBJECT_BYTES
from dsf.api.scorer import DynamicScorer
from dsf.api.scorerule import EmptyItem, EmptyRule, ScoreRule, build_empty_items
from dsf.api.urls import TokenHosts
from dsf.errors import ResolutionError
from tests.cases import load
from tests.unit.api.factories import PROMETHEUS, QUERY, SPEC, SYNCED, merged, scorer

PAUSED_UNTIL = "dynamic-scoring.open-cluster-management.io/paused-until"


def make_changed_scorer(spec: dict[str, Any], synced: dict[str, Any] | None, mode: str = "Full") -> DynamicScorer:
    """Return a default scorer with changes by dotted path to its spec and its synced config."""
    return scorer(
        merged({**SPEC, "configSyncMode": mode}, spec), merged(SYNCED, synced) if synced is not None else None
    )


def refusal(dynamic_scorer: DynamicScorer) -> tuple[str, str]:
    with pytest.raises(ResolutionError) as raised:
        resolve(dynamic_scorer)
    return raised.value.reason, str(raised.value)


def test_complete_summary_is_resolved() -> None:
    assert resolve(scorer(synced=SYNCED)).summary.model_dump(by_alias=True, exclude_none=True) == {
        "name": "sample-scorer",
        "scoreName": "sample_my_score",
        "sourceType": "Prometheus",
        "sourceEndpoint": f"{PROMETHEUS}/api/v1/query_range",
        "sourceEndpointAuthName": "",
        "sourceEndpointAuthKey": "",
        "sourceQuery": QUERY,
        "sourceRange": 3600,
        "sourceStep": 60,
        "scoringEndpoint": "http://10.0.0.5:30007/scoring",
        "scoringInterval": 30,
        "scoringEndpointAuthName": "",
        "scoringEndpointAuthKey": "",
        "location": "Internal",
        "scoreDestination": "AddOnPlacementScore",
        "scoreDimensionFormat": "${node};${namespace};${pod}",
        "timeoutSeconds": 30,
        "maxRetries": 2,
        "validitySeconds": 300,
    }


@pytest.mark.parametrize("case", load("resolution"))
def test_precedence(case: dict[str, Any]) -> None:
    summary = resolve(make_changed_scorer(case["spec"], case["synced"], case["mode"])).summary
    assert getattr(summary, case["field"]) == case["expected"]


@pytest.mark.parametrize("case", load("resolution_errors"))
def test_refused(case: dict[str, Any]) -> None:
    assert refusal(make_changed_scorer(case["spec"], case["synced"], case["mode"])) == (case["reason"], case["message"])


@pytest.mark.parametrize("case", load("token_hosts"))
def test_token_goes_to_the_server_of_the_spec(case: dict[str, Any]) -> None:
    auth = {"source.auth": {"tokenSecretRef": {"name": "prom", "key": "token"}}}
    spec = {**case["spec"], **auth}
    summary = resolve(make_changed_scorer(spec, case["synced"], spec.get("configSyncMode", "Full"))).summary
    assert summary.source_endpoint.startswith(case["expected"] + "/")
    assert (summary.source_endpoint_auth_name, summary.source_endpoint_auth_key) == ("prom", "token")


def test_token_may_go_to_a_host_listed_by_the_hub_administrator() -> None:
    auth = {"source.auth": {"tokenSecretRef": {"name": "prom", "key": "token"}}, "source.host": ""}
    dynamic_scorer = make_changed_scorer(auth, {"source.host": "http://thanos.example:9091"})
    with pytest.raises(ResolutionError, match=r"hubSetting\.tokenHosts"):
        resolve(dynamic_scorer, TokenHosts(["other.example"]))
    summary = resolve(dynamic_scorer, TokenHosts(["thanos.example:9091"])).summary
    assert summary.source_endpoint.startswith("http://thanos.example:9091/")
    assert summary.source_endpoint_auth_name == "prom"


@pytest.mark.parametrize("name", ["dynamic-scoring-agent-credentials", "dynamic-scoring-framework-hub-kubeconfig"])
@pytest.mark.parametrize("stage", ["source", "scoring"])
def test_credentials_secret_of_the_agents_is_refused_as_token(stage: str, name: str) -> None:
    auth = {f"{stage}.auth": {"tokenSecretRef": {"name": name, "key": "signing-key"}}}
    reason, message = refusal(make_changed_scorer(auth, {}))
    assert reason == "InvalidTokenSecretRef"
    assert message.startswith(f"spec.{stage}.auth.tokenSecretRef.name: {name} is the agents'")


def test_full_without_a_synced_config_uses_the_spec() -> None:
    spec = {"scoring.params": {"name": "s", "interval": 10}, "source": {"type": "None"}}
    summary = resolve(make_changed_scorer(spec, None)).summary
    assert (summary.score_name, summary.scoring_interval, summary.source_type) == ("s", 10, "None")


def test_summary_without_a_source_has_no_source_fields() -> None:
    summary = resolve(make_changed_scorer({}, {"source.type": "None"})).summary
    assert (summary.source_query, summary.source_range, summary.source_step) == ("", 0, 0)


def test_without_a_pause() -> None:
    assert resolve(scorer(synced=SYNCED)).paused_until is None


def test_paused_until() -> None:
    dynamic_scorer = scorer(synced=SYNCED, annotations={PAUSED_UNTIL: "2026-11-21T12:00:00+02:00"})
    assert resolve(dynamic_scorer).paused_until == datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("text", ["tomorrow", "2026-11-21T12:00:00", "2026-11-21"])
def test_invalid_pause_annotation_refuses_the_scorer(text: str) -> None:
    assert refusal(scorer(synced=SYNCED, annotations={PAUSED_UNTIL: text})) == (
        "InvalidPausedUntil",
        f"annotation {PAUSED_UNTIL}: '{text}' is not a time such as 2026-11-21T10:00:00Z",
    )


def test_resolved_scorer_is_hashable_and_immutable() -> None:
    first, second = resolve(scorer(synced=SYNCED)), resolve(scorer(synced=SYNCED))
    assert first == second
    assert hash(first) == hash(second)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.paused_until = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "characters", "name"),
    [
        ("source.params.query", 12_000, "source.params.query in /config has 900000 characters"),
        ("scoring.params.name", 1024, "scoring.params.name has 900000 characters"),
    ],
)
def test_oversized_scorer_is_refused(field: str, characters: int, name: str) -> None:
    resolve(make_changed_scorer({}, {field: "q" * characters}))
    reason, message = refusal(make_changed_scorer({}, {field: "q" * 900_000}))
    assert reason == "TooLarge"
    assert name in message
    assert len(message) < 1000


def test_every_reason_can_be_the_reason_of_a_condition() -> None:
    assert all(reason.isalpha() and reason[0].isupper() for reason in ResolveReason)


@pytest.mark.parametrize(
    ("single", "several", "first", "further"),
    [
        ("", [], "${scoreName}", None),
        ("${node}", [], "${node}", None),
        ("", ["${node}", "${pod}"], "${node}", ("${pod}",)),
        ("${node}", ["${pod}", "${node}", "all"], "${node}", ("${pod}", "all")),
    ],
)
def test_single_format_precedes_the_list_and_duplicates_are_removed(
    single: str, several: list[str], first: str, further: tuple[str, ...] | None
) -> None:
    summary = resolve(scorer({"scoreDimensionFormat": single, "scoreDimensionFormats": several}, SYNCED)).summary
    assert (summary.score_dimension_format, summary.more_dimension_formats) == (first, further)


def test_longest_score_name_makes_no_large_object_without_results() -> None:
    resolved = resolve(make_changed_scorer({}, {"scoring.params.name": "q" * MAX_SCORE_NAME_CHARACTERS}))
    items = [EmptyItem(name=f"{number}" + "${scoreName}" * 20, value=0) for number in range(256)]
    rule = ScoreRule(score_name=resolved.score_name, when_empty=EmptyRule(behavior="Value", items=items))
    assert sum(len(name) for name, _ in build_empty_items(rule, "c", None)) < 6 * MAX_OBJECT_BYTES
    assert (
        refusal(make_changed_scorer({}, {"scoring.params.name": "q" * (MAX_SCORE_NAME_CHARACTERS + 1)}))[0]
        == "TooLarge"
    )
