"""Samples: means, tables, config documents and dropped series."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.unit.samples.conftest import Load

QUERY = (
    "sum by (node, namespace, pod) (max by (node, namespace, pod, container) ("
    'rate(container_cpu_usage_seconds_total{container!="", pod!=""}[5m])))'
)
META = "my_something_meta_by_sample_scorer"


def series(values: list[str], **labels: str) -> dict[str, Any]:
    return {"metric": labels, "values": [[1718600000 + 60 * n, value] for n, value in enumerate(values)]}


def post_series(module: Any, *data: dict[str, Any], path: str = "") -> Any:
    """Return the response to these series."""
    with TestClient(module.app) as client:
        answer = client.post(f"{path}/scoring", json={"data": data})
    assert answer.status_code == 200, answer.text
    return answer.json()


def config(module: Any, path: str = "") -> Any:
    with TestClient(module.app) as client:
        return client.get(f"{path}/config").json()


def test_score_is_the_mean_and_labels_are_kept(load_sample: Load) -> None:
    name = "my_metric_query_name"
    input_series = [
        series(["5", "10", "15"], __name__=name, instance=instance) for instance in ("localhost:9090", "other")
    ]
    assert post_series(load_sample("sample-scorer"), *input_series, series([], a="b")) == {
        "results": [
            {"metric": {"__name__": name, "instance": "localhost:9090", "meta": META}, "score": 10.0},
            {"metric": {"__name__": name, "instance": "other", "meta": META}, "score": 10.0},
            {"metric": {"a": "b", "meta": META}, "score": 0.0},
        ]
    }
    assert post_series(load_sample("sample-scorer")) == {"results": []}


@pytest.mark.parametrize(
    ("values", "reason"), [(["1", "NaN"], "nan"), (["1", "+Inf"], "nan"), (["1e308", "1e308"], "infinite")]
)
def test_series_without_a_finite_mean_has_no_result(load_sample: Load, values: list[str], reason: str) -> None:
    assert post_series(load_sample("sample-scorer"), series(values, pod="bad"), series(["1", "3"], pod="good")) == {
        "results": [{"metric": {"pod": "good", "meta": META}, "score": 2.0}],
        "dropped": {reason: 1},
    }


@pytest.mark.parametrize(
    ("sample", "description", "step", "score_name"),
    [
        ("sample-scorer", "A sample score for time series data", 60, "sample_my_score"),
        ("simple-prediction-scorer", "A simple prediction score for time series data", 30, "simple_prediction_score"),
    ],
)
def test_their_config_names_the_prometheus_of_a_cluster(
    load_sample: Load, sample: str, description: str, step: int, score_name: str
) -> None:
    assert config(load_sample(sample)) == {
        "name": sample,
        "description": description,
        "source": {
            "type": "Prometheus",
            "host": "http://kube-prometheus-kube-prome-prometheus.monitoring.svc:9090",
            "path": "/api/v1/query_range",
            "params": {"query": QUERY, "range": 3600, "step": step},
        },
        "scoring": {"path": "/scoring", "params": {"name": score_name, "interval": 30}},
    }


@pytest.mark.parametrize(
    ("sample", "path"),
    [
        ("sample-scorer", ""),
        ("simple-prediction-scorer", ""),
        ("resource-usage-scorer", ""),
        ("llm-forecast-scorer", ""),
        ("static-scorer", "/performance"),
        ("static-scorer", "/powerconsumption"),
    ],
)
def test_environment_changes_the_config_document(load_sample: Load, sample: str, path: str) -> None:
    assert config(load_sample(sample, SCORE_INTERVAL="7"), path)["scoring"]["params"]["interval"] == 7


def test_both_tables(load_sample: Load) -> None:
    module = load_sample("static-scorer")

    def table(name: str) -> list[tuple[dict[str, str], float]]:
        return [(result["metric"], result["score"]) for result in post_series(module, path=f"/{name}")["results"]]

    assert table("performance") == [
        ({"app": "app01", "device": "all"}, 80.0),
        ({"app": "app02", "device": "all"}, 80.0),
        ({"app": "app01", "device": "3g.48gb"}, 60.0),
        ({"app": "app02", "device": "3g.48gb"}, 55.0),
        ({"app": "app01", "device": "2g.24gb"}, 10.0),
        ({"app": "app02", "device": "2g.24gb"}, 15.0),
    ]
    power = table("powerconsumption")
    assert [score for _, score in power] == [20.0, 10.0, 30.0, 55.0, 80.0, 90.0]
    assert [labels for labels, _ in power] == [labels for labels, _ in table("performance")]


def test_config_documents_of_the_static_scorer(load_sample: Load) -> None:
    module = load_sample("static-scorer")
    assert config(module, "/powerconsumption") == {
        "name": "example-powerconsumption-scorer",
        "description": "An example power consumption score",
        "source": {"type": "None"},
        "scoring": {
            "path": "/powerconsumption/scoring",
            "params": {"name": "example_powerconsumption_score", "interval": 30},
        },
    }
    performance = config(module, "/performance")
    assert performance["name"] == "example-performance-scorer"
    assert performance["scoring"]["params"]["name"] == "example_performance_score"


def test_config_documents_of_the_ai_workload_scorer(load_sample: Load) -> None:
    module = load_sample("ai-workload-scorer")
    for path, score_name, metric in (
        ("power", "ai_workload_power_score", "DCGM_FI_DEV_POWER_USAGE"),
        ("performance", "ai_workload_perf_score", "vllm:generation_tokens_total"),
    ):
        document = config(module, f"/{path}")
        assert document["scoring"] == {"path": f"/{path}/scoring", "params": {"name": score_name, "interval": 30}}
        assert metric in document["source"]["params"]["query"]


@pytest.mark.parametrize(
    ("sample", "path", "reason", "score_name"),
    [
        ("simple-prediction-scorer", "", "too_short", "simple_prediction_score"),
        ("ai-workload-scorer", "/power", "no_exported_pod", "ai_workload_power_score"),
    ],
)
def test_skipped_series_are_counted(load_sample: Load, sample: str, path: str, reason: str, score_name: str) -> None:
    with TestClient(load_sample(sample).app) as client:
        answer = client.post(f"{path}/scoring", json={"data": [series(["5"], Hostname="n1")]})
        metrics = client.get("/metrics").text
    assert answer.json()["dropped"] == {reason: 1}
    assert f'results_refused_total{{ds_score_name="{score_name}",reason="{reason}"}} 1.0' in metrics
