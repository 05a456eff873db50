"""The agent's own metrics as Prometheus sees them."""

from __future__ import annotations

import math
from unittest import mock

import pytest
from prometheus_client import generate_latest

from dsf.agent import metrics as metrics_module
from dsf.agent.metrics import AgentMetrics
from dsf.api.scoringresponse import ScoringResult
from dsf.api.summary import ScorerSummary


class Config:
    """A configuration that is held in memory."""

    problem = ""
    loaded_at = 17.0

    def __init__(self, *summaries: ScorerSummary) -> None:
        self.now = {summary.name: summary for summary in summaries}

    def get(self, scorer: str) -> ScorerSummary | None:
        return self.now.get(scorer)

    def get_summaries(self) -> dict[str, ScorerSummary]:
        return self.now

    def get_namespaces(self) -> dict[str, str]:
        return {name: summary.namespace or "" for name, summary in self.now.items()}


def scorer(name: str, score_name: str = "", **values: object) -> ScorerSummary:
    return ScorerSummary(name=name, score_name=score_name or f"{name}-score", scoring_interval=10, **values)  # type: ignore[arg-type]


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def page(metrics: AgentMetrics, prefix: str = "dynamic_score{") -> list[str]:
    return [line for line in generate_latest(metrics.registry).decode().splitlines() if line.startswith(prefix)]


def test_exposed_line_keeps_the_form_that_dashboards_query() -> None:
    summary = scorer("a", "simple_prediction_score")
    metrics = AgentMetrics("cluster1", Config(summary))
    metrics.publish(summary, [ScoringResult({"node": "mynode", "namespace": "mynamespace", "pod": "mypod"}, 123.45)])
    empty = 'ds_app="",ds_cluster="cluster1",ds_container="",ds_device="",ds_meta=""'
    labels = f'{empty},ds_namespace="mynamespace",ds_node="mynode",ds_pod="mypod"'
    assert page(metrics) == [f'dynamic_score{{{labels},ds_score_name="simple_prediction_score"}} 123.45']


def test_labels_are_made_once_for_all_scrapes(monkeypatch: pytest.MonkeyPatch) -> None:
    counted_labels = mock.Mock(side_effect=metrics_module.make_gauge_label_values)
    monkeypatch.setattr(metrics_module, "make_gauge_label_values", counted_labels)
    summary = scorer("a")
    metrics = AgentMetrics("c", Config(summary))
    metrics.publish(summary, [ScoringResult({"node": "x"}, 1.0), ScoringResult({"node": "y"}, 2.0)])
    assert len(page(metrics)) == len(page(metrics)) == counted_labels.call_count == 2


def test_scores_go_when_they_are_replaced_removed_or_expired() -> None:
    first, second = scorer("a"), scorer("b", validity_seconds=20)
    config, clock = Config(first, second), Clock()
    metrics = AgentMetrics("c", config, clock)
    metrics.publish(first, [ScoringResult({"node": "x"}, 1.0), ScoringResult({"node": "y"}, 2.0)])
    metrics.publish(second, [ScoringResult({}, 3.0)])
    assert len(page(metrics)) == 3
    metrics.publish(first, [ScoringResult({"node": "x"}, 5.0)])
    assert sorted(line.split()[-1] for line in page(metrics)) == ["3.0", "5.0"]
    clock.time += 20
    assert [line.split()[-1] for line in page(metrics)] == ["5.0"]
    config.now = {"a": scorer("a", "renamed")}
    assert page(metrics) == []
    config.now = {"a": first}
    assert page(metrics) == []


def test_equal_labels_are_one_series() -> None:
    first, second = scorer("a", "same"), scorer("b", "same")
    metrics = AgentMetrics("c", Config(first, second))
    metrics.publish(first, [ScoringResult({"pod": "x" * 300}, 1.0), ScoringResult({"pod": "x" * 400}, 2.0)])
    metrics.publish(second, [ScoringResult({"pod": "x" * 500}, 3.0)])
    (line,) = page(metrics)
    assert 'ds_pod="' + "x" * 256 + '"' in line


def test_counters() -> None:
    config = Config()
    metrics = AgentMetrics("c", config)
    metrics.count_success("s", [("nan", 2)])
    metrics.count_failure("s", "fetch", "timeout")
    for stage in ("fetch", "score", "publish"):
        metrics.on_timed("s", stage, 0.5)
    lines = page(metrics, "dynamic_scoring_")
    for line in (
        'dynamic_scoring_requests_total{score_name="s",status="success"} 1.0',
        'dynamic_scoring_requests_total{score_name="s",status="failure"} 1.0',
        'dynamic_scoring_failures_total{ds_score_name="s",reason="timeout",stage="fetch"} 1.0',
        'dynamic_scoring_results_refused_total{ds_score_name="s",reason="nan"} 2.0',
        'dynamic_scoring_fetch_seconds_total{score_name="s"} 0.5',
        'dynamic_scoring_perform_seconds_total{score_name="s"} 0.5',
        'dynamic_scoring_send_seconds_total{score_name="s"} 0.5',
        'dynamic_scoring_stage_seconds_count{ds_score_name="s",stage="score"} 1.0',
        "dynamic_scoring_config_valid 1.0",
        "dynamic_scoring_config_loaded_timestamp_seconds 17.0",
    ):
        assert line in lines
    config.problem = "not JSON"
    assert page(metrics, "dynamic_scoring_config_valid") == ["dynamic_scoring_config_valid 0.0"]
    assert not any("_created" in line for line in lines)
    assert math.isfinite(sum(float(line.split()[-1]) for line in lines))


def test_series_of_old_score_names_are_removed_when_there_are_many() -> None:
    config = Config(scorer("a"), scorer("renamed", "name-0"))
    metrics = AgentMetrics("c", config)
    metrics.count_success("a-score", [("nan", 1)])
    for number in range(1000):
        config.now["renamed"] = scorer("renamed", f"name-{number}")
        metrics.count_success(f"name-{number}", [("nan", 1)])
        metrics.count_failure(f"name-{number}", "fetch", "timeout")
        metrics.on_timed(f"name-{number}", "fetch", 0.1)
    lines = page(metrics, "dynamic_scoring_requests_total{")
    assert len(lines) < 250
    assert {'dynamic_scoring_requests_total{score_name="a-score",status="success"} 1.0'} <= set(lines)
    assert any('"name-999"' in line for line in lines)
    assert len(page(metrics, "dynamic_scoring_")) < 5000
