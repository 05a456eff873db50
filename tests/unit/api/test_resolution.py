"""Summaries of sources other than Prometheus."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.api.resolve import resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.summary import ScorerSummary


def summary(**source: Any) -> ScorerSummary:
    scorer = {
        "metadata": {"name": "s"},
        "spec": {
            "description": "d",
            "configURL": "http://scorer:8000/config",
            "configSyncMode": "None",
            "source": source,
            "scoring": {"params": {"name": "n", "interval": 30}},
        },
    }
    return resolve(DynamicScorer.model_validate(scorer)).summary


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [(None, "http://otel:8889/metrics"), ("/v1/metrics", "http://otel:8889/v1/metrics")],
)
def test_opentelemetry_has_a_separate_default_path(path: str | None, endpoint: str) -> None:
    path_field = {"path": path} if path else {}
    scorer_summary = summary(
        type="OpenTelemetry", host="http://otel:8889", params={"query": "up", "range": 60, "step": 10}, **path_field
    )
    assert scorer_summary.source_endpoint == endpoint
    assert (scorer_summary.source_query, scorer_summary.source_range, scorer_summary.source_step) == ("up", 60, 10)


def test_kubernetes_needs_no_address_and_no_token() -> None:
    secret = {"tokenSecretRef": {"name": "s", "key": "k"}}
    scorer_summary = summary(
        type="Kubernetes", host="http://ignored", auth=secret, params={"query": "q", "range": 60, "step": 10}
    )
    assert (scorer_summary.source_endpoint, scorer_summary.source_endpoint_auth_name) == ("", "")
    assert (scorer_summary.source_query, scorer_summary.source_range, scorer_summary.source_step) == ("q", 60, 10)
    assert summary(type="Kubernetes").source_query == ""
