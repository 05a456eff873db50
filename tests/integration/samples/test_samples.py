"""The samples whose scores are simple: the mean, the tables, and what the others say over HTTP."""

from __future__ import annotations

import base64
import json
import math
import re
import subprocess
from typing import Any

import pytest
import requests

from dsf.api.remoteconfig import parse_remote_config
from dsf.api.scoring import parse_response
from tests.integration.samples.conftest import Start, ask, series
from tests.integration.samples.llm import MODEL, LanguageModel
from tests.support.uv import ROOT

# All processes of the samples are on one worker.
pytestmark = pytest.mark.xdist_group("samples")

META = "my_something_meta_by_sample_scorer"
UPSTREAM_QUERY = 'sum by (node, namespace, pod) (rate(container_cpu_usage_seconds_total{container!="", pod!=""}[1m]))'


@pytest.fixture
def sample(start: Start) -> str:
    return start("sample-scorer")


@pytest.fixture
def static(start: Start) -> str:
    return start("static-scorer")


@pytest.fixture
def prediction(start: Start) -> str:
    return start("simple-prediction-scorer")


@pytest.fixture
def accelerators(start: Start) -> str:
    return start("ai-workload-scorer", THRESHOLD="650", ALPHA="0.01")


class TestSampleScorer:
    def test_the_score_is_the_mean_and_labels_are_kept(self, sample: str) -> None:
        name = "my_metric_query_name"
        one = series(["5", "10", "15"], __name__=name, instance="localhost:9090")
        other = series(["5", "10", "15"], __name__=name, instance="other")
        assert ask("POST", f"{sample}/scoring", {"data": [one, other]}) == {
            "results": [
                {"metric": {"__name__": name, "instance": "localhost:9090", "meta": META}, "score": 10.0},
                {"metric": {"__name__": name, "instance": "other", "meta": META}, "score": 10.0},
            ]
        }

    def test_no_values_score_zero_and_no_series_nothing(self, sample: str) -> None:
        assert ask("POST", f"{sample}/scoring", {"data": [series([], a="b")]}) == {
            "results": [{"metric": {"a": "b", "meta": META}, "score": 0.0}]
        }
        assert ask("POST", f"{sample}/scoring", {"data": []}) == {"results": []}

    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
    def test_a_series_without_a_finite_mean_has_no_result(self, sample: str, value: str) -> None:
        body = {"data": [series(["1", value], pod="bad"), series(["1", "3"], pod="good")]}
        assert ask("POST", f"{sample}/scoring", body)["results"] == [
            {"metric": {"pod": "good", "meta": META}, "score": 2.0}
        ]

    def test_two_huge_values_do_not_become_infinite_scores(self, sample: str) -> None:
        body = {"data": [series(["1e308", "1e308"], pod="huge")]}
        assert ask("POST", f"{sample}/scoring", body) == {"results": [], "dropped": {"infinite": 1}}

    @pytest.mark.parametrize(
        ("body", "where"),
        [
            ({"data": 5}, '{"data": [...]}'),
            ({}, '{"data": [...]}'),
            ({"data": [{"metric": {}}]}, "data[0].values"),
            ({"data": [series(["1"]), series(["1", "x"])]}, "data[1].values[1][1]"),
        ],
    )
    def test_what_is_no_request_is_refused_with_the_place(self, sample: str, body: Any, where: str) -> None:
        answer = requests.post(f"{sample}/scoring", json=body, timeout=300)
        assert answer.status_code == 422
        assert where in answer.json()["detail"]

    def test_its_config_names_the_prometheus_of_a_cluster(self, sample: str) -> None:
        assert ask("GET", f"{sample}/config") == {
            "name": "sample-scorer",
            "description": "A sample score for time series data",
            "source": {
                "type": "Prometheus",
                "host": "http://kube-prometheus-kube-prome-prometheus.monitoring.svc:9090",
                "path": "/api/v1/query_range",
                "params": {"query": UPSTREAM_QUERY, "range": 3600, "step": 60},
            },
            "scoring": {"path": "/scoring", "params": {"name": "sample_my_score", "interval": 30}},
        }

    def test_its_config_can_be_changed(self, start: Start) -> None:
        url = start(
            "sample-scorer",
            SOURCE_HOST="http://prometheus:9090",
            SOURCE_PATH="/p/api/v1/query_range",
            SOURCE_QUERY="up",
            SOURCE_RANGE="60",
            SOURCE_STEP="5",
            SCORE_NAME="my_score",
            SCORE_INTERVAL="7",
        )
        config = ask("GET", f"{url}/config")
        assert config["source"] == {
            "type": "Prometheus",
            "host": "http://prometheus:9090",
            "path": "/p/api/v1/query_range",
            "params": {"query": "up", "range": 60, "step": 5},
        }
        assert config["scoring"] == {"path": "/scoring", "params": {"name": "my_score", "interval": 7}}


class TestStaticScorer:
    def test_both_tables(self, static: str) -> None:
        def table(name: str) -> dict[tuple[str, str], float]:
            results = ask("POST", f"{static}/{name}/scoring", {"data": []})["results"]
            return {(found["metric"]["app"], found["metric"]["device"]): found["score"] for found in results}

        assert list(table("performance").items()) == [
            (("app01", "all"), 80.0),
            (("app02", "all"), 80.0),
            (("app01", "3g.48gb"), 60.0),
            (("app02", "3g.48gb"), 55.0),
            (("app01", "2g.24gb"), 10.0),
            (("app02", "2g.24gb"), 15.0),
        ]
        assert list(table("powerconsumption").items()) == [
            (("app01", "all"), 20.0),
            (("app02", "all"), 10.0),
            (("app01", "3g.48gb"), 30.0),
            (("app02", "3g.48gb"), 55.0),
            (("app01", "2g.24gb"), 80.0),
            (("app02", "2g.24gb"), 90.0),
        ]

    def test_results_have_exactly_two_labels(self, static: str) -> None:
        # Without a body as well: what is posted does not matter.
        results = ask("POST", f"{static}/performance/scoring")["results"]
        assert results[0] == {"metric": {"app": "app01", "device": "all"}, "score": 80.0}

    def test_its_configs(self, static: str) -> None:
        assert ask("GET", f"{static}/powerconsumption/config") == {
            "name": "example-powerconsumption-scorer",
            "description": "An example power consumption score",
            "source": {"type": "None"},
            "scoring": {
                "path": "/powerconsumption/scoring",
                "params": {"name": "example_powerconsumption_score", "interval": 30},
            },
        }
        performance = ask("GET", f"{static}/performance/config")
        assert performance["name"] == "example-performance-scorer"
        assert performance["scoring"]["params"]["name"] == "example_performance_score"

    def test_the_interval_of_both_can_be_set(self, start: Start) -> None:
        url = start("static-scorer", SCORE_INTERVAL="9")
        for name in ("performance", "powerconsumption"):
            assert ask("GET", f"{url}/{name}/config")["scoring"]["params"]["interval"] == 9

    def test_another_table_is_not_found(self, static: str) -> None:
        for method, path in (("GET", "colour/config"), ("POST", "colour/scoring")):
            answer = requests.request(method, f"{static}/{path}", timeout=300)
            assert answer.status_code == 404
            assert "/performance/config" in answer.json()["detail"]


class TestSimplePredictionScorer:
    def test_a_rising_load_scores_high(self, prediction: str) -> None:
        labels = {"node": "n1", "namespace": "shop"}
        rising = series([f"{at / 60:.4f}" for at in range(58)], pod="web", **labels)
        resting = series([f"{0.1 + 0.02 * math.sin(at):.4f}" for at in range(60)], pod="idle", **labels)
        short = series(["5"] * 19, pod="new", **labels)
        found = ask("POST", f"{prediction}/scoring", {"data": [rising, short, resting]})["results"]
        assert [result["metric"]["pod"] for result in found] == ["idle", "web"]
        assert found[0]["score"] < 0.001
        # The tenth value to come is 67 / 60.
        assert found[1]["score"] == pytest.approx(100 / (1 + math.exp(-20 * 7 / 60)), rel=0.01)
        meta = json.loads(base64.b64decode(found[1]["metric"]["meta"]))
        assert meta == {"predictor_label": "n1_shop_web", "alpha": 20.0, "threshold": 1.0}
        metrics = requests.get(f"{prediction}/metrics", timeout=300).text
        assert 'results_refused_total{reason="too_short",scorer="simple-prediction-scorer"}' in metrics

    def test_its_config(self, prediction: str) -> None:
        assert ask("GET", f"{prediction}/config") == {
            "name": "simple-prediction-scorer",
            "description": "A simple prediction score for time series data",
            "source": {
                "type": "Prometheus",
                "host": "http://kube-prometheus-kube-prome-prometheus.monitoring.svc:9090",
                "path": "/api/v1/query_range",
                "params": {"query": UPSTREAM_QUERY, "range": 3600, "step": 30},
            },
            "scoring": {"path": "/scoring", "params": {"name": "simple_prediction_score", "interval": 30}},
        }


class TestAiWorkloadScorer:
    def test_power(self, accelerators: str) -> None:
        seen = series(["5", "7"], Hostname="n1", exported_pod="app01-x", GPU_I_PROFILE="2g.24gb")
        found = ask("POST", f"{accelerators}/power/scoring", {"data": [seen, series(["1"], Hostname="n1")]})["results"]
        scores = {f"{result['metric']['app']};{result['metric']['device']}": result["score"] for result in found}
        assert scores.pop("app01;2g.24gb") == 99.84616905277457
        assert set(scores.values()) == {10.0}
        assert len(scores) == 5
        metrics = requests.get(f"{accelerators}/metrics", timeout=300).text
        assert 'results_refused_total{reason="no_exported_pod",scorer="ai-workload-power-scorer"} 1.0' in metrics

    def test_performance(self, accelerators: str, static: str) -> None:
        found = ask("POST", f"{accelerators}/performance/scoring")
        assert found == ask("POST", f"{static}/performance/scoring")

    def test_its_configs(self, accelerators: str) -> None:
        queries = {
            "power": ("ai_workload_power_score", "DCGM_FI_DEV_POWER_USAGE"),
            "performance": ("ai_workload_perf_score", "vllm:generation_tokens_total"),
        }
        for path, (score_name, metric) in queries.items():
            config = ask("GET", f"{accelerators}/{path}/config")
            assert config["scoring"] == {"path": f"/{path}/scoring", "params": {"name": score_name, "interval": 30}}
            assert metric in config["source"]["params"]["query"]


def test_the_framework_reads_what_they_say(sample: str, static: str, prediction: str, accelerators: str) -> None:
    urls = [sample, prediction, *(f"{static}/{path}" for path in ("performance", "powerconsumption"))]
    for url in [*urls, *(f"{accelerators}/{path}" for path in ("power", "performance"))]:
        parse_remote_config(requests.get(f"{url}/config", timeout=300).content)
        answer = requests.post(f"{url}/scoring", json={"data": [series(["1"] * 30, node="n")]}, timeout=300)
        assert parse_response(answer.content).results


@pytest.mark.parametrize("name", ["sample-scorer", "static-scorer", "simple-prediction-scorer", "ai-workload-scorer"])
def test_the_scripts_of_the_samples_run(start: Start, name: str) -> None:
    check_script(name, start(name))


def test_the_script_of_the_language_model_scorer_runs(start: Start) -> None:
    with LanguageModel() as model:
        check_script("llm-forecast-scorer", start("llm-forecast-scorer", VLLM_ENDPOINT=model.url, MODEL_NAME=MODEL))


def check_script(name: str, url: str) -> None:
    """What a person runs against a running sample."""
    script = ROOT / "samples" / name / "test_scorer.sh"
    done = subprocess.run([script, url], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r'"score":-?[0-9]', done.stdout), done.stdout
