from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from dsf.api.problems import explain
from dsf.api.scorer import DynamicScorer, DynamicScorerStatus, FailedCycle
from dsf.api.types import ConfigSyncMode, HealthStatus
from tests.cases import load
from tests.unit.api.factories import SYNCED, manifest, scorer


# This project adds the source types OpenTelemetry and Kubernetes, and defaults of location and scoreDestination.
@pytest.mark.parametrize("case", load("scorer_specs"))
def test_spec(case: dict[str, Any]) -> None:
    document = manifest(case["spec"])
    try:
        DynamicScorer.from_manifest(document)
        mistakes = []
    except ValidationError as error:
        mistakes = [str(mistake) for mistake in explain(error, DynamicScorer, document)]
    assert mistakes == case["mistakes"]


def test_defaults() -> None:
    spec = scorer().spec
    assert spec.location == "Internal"
    assert spec.score_destination == "AddOnPlacementScore"
    assert spec.config_sync_mode is ConfigSyncMode.Full
    assert spec.execution.to_manifest() == {
        "timeoutSeconds": 30,
        "maxRetries": 2,
        "whenFailing": {"failureThreshold": 3, "behavior": "Keep"},
        "whenEmpty": {"behavior": "Empty"},
        "suspend": False,
    }


def test_new_scorer_has_unknown_health() -> None:
    status = DynamicScorer.from_manifest(manifest()).status
    assert status == DynamicScorerStatus(health_status=HealthStatus.Unknown)


def test_empty_health_status_is_refused() -> None:
    document = manifest(status={"healthStatus": ""})
    with pytest.raises(ValidationError) as raised:
        DynamicScorer.from_manifest(document)
    assert [str(mistake) for mistake in explain(raised.value, DynamicScorer, document)] == [
        "status.healthStatus: '' is not one of Active, Inactive, Unknown"
    ]


def test_status_of_another_version_is_read() -> None:
    status = {"healthStatus": "Active", "somethingNew": 1, "lastSyncedConfig": {**SYNCED, "somethingNew": 1}}
    assert DynamicScorer.from_manifest(manifest(status=status)).status.health_status is HealthStatus.Active


def test_status_is_written_as_a_manifest() -> None:
    failure = FailedCycle(cluster="c", stage="fetch", reason="bad_query", time=datetime(2026, 1, 1, tzinfo=UTC))
    status = DynamicScorerStatus(health_status=HealthStatus.Active, observed_generation=3, failures=[failure])
    assert status.to_manifest() == {
        "healthStatus": "Active",
        "observedGeneration": 3,
        "conditions": [],
        "scoreName": "",
        "clustersWithOtherInterval": 0,
        "clusters": {"desired": 0, "succeeding": 0, "empty": 0, "failing": 0},
        "failures": [
            {"cluster": "c", "stage": "fetch", "reason": "bad_query", "message": "", "time": "2026-01-01T00:00:00Z"}
        ],
    }


def test_scorer_manifest_round_trip_is_lossless() -> None:
    dynamic_scorer = scorer(synced=SYNCED, generation=2, creationTimestamp="2026-01-01T00:00:00Z")
    assert DynamicScorer.from_manifest(dynamic_scorer.to_manifest()) == dynamic_scorer
    assert dynamic_scorer.key == "open-cluster-management/sample-scorer"


def test_spec_is_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        scorer().spec.description = "x"  # type: ignore[misc]


@pytest.mark.parametrize("url", ["http://h/config\n", "\nhttp://h/config", "ftp://h/config"])
def test_invalid_config_url_is_refused(url: str) -> None:
    document = manifest(scorer().spec.to_manifest() | {"configURL": url})
    with pytest.raises(ValidationError, match="is not a URL that starts with http"):
        DynamicScorer.from_manifest(document)
