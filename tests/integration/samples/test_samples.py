"""The samples as they are: programs that answer HTTP, started on their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from dsf.api.manifest import ParsedDocument, parse_documents
from dsf.api.remoteconfig import parse_remote_config
from dsf.api.scorer import DynamicScorer
from dsf.api.scoring import parse_response
from dsf.demo.ports import Ports
from dsf.demo.services import samples_dir
from dsf.demo.stack import http_ready
from dsf.demo.supervisor import Program, Supervisor

META = "my_something_meta_by_sample_scorer"
UPSTREAM_QUERY = 'sum by (node, namespace, pod) (rate(container_cpu_usage_seconds_total{container!="", pod!=""}[1m]))'
Start = Callable[..., str]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`start("sample-scorer", SCORE_INTERVAL="5") -> url`."""
    supervisor = Supervisor(tmp_path_factory.mktemp("samples"), lambda _: None)
    ports = Ports(lambda _: None)

    def make(name: str, **environment: str) -> str:
        port = ports.any()
        folder = samples_dir() / name
        command = (sys.executable, "-m", "uvicorn", "--app-dir", str(folder), "--port", str(port), "app:app")
        url = f"http://127.0.0.1:{port}"
        # Nothing of this process's environment: the samples stand alone.
        supervisor.start(Program(f"{name} {port}", command, environment, ready=http_ready(f"{url}/healthz")))
        supervisor.wait_ready(30)
        return url

    yield make
    supervisor.stop_all()


@pytest.fixture(scope="module")
def sample(start: Start) -> str:
    return start("sample-scorer")


@pytest.fixture(scope="module")
def static(start: Start) -> str:
    return start("static-scorer")


def ask(method: str, url: str, body: Any = None) -> Any:
    answer = requests.request(method, url, json=body, timeout=10)
    assert answer.status_code == 200, answer.text
    return answer.json()


def series(values: list[str], **labels: str) -> dict[str, Any]:
    return {"metric": labels, "values": [[1718600000 + 60 * n, value] for n, value in enumerate(values)]}


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
        assert ask("POST", f"{sample}/scoring", body) == {"results": []}

    @pytest.mark.parametrize("body", [{"data": None}, {}, {"data": [{"metric": {}}]}, {"data": [series(["x"])]}, None])
    def test_what_is_no_request_is_refused_with_the_field(self, sample: str, body: Any) -> None:
        answer = requests.post(f"{sample}/scoring", json=body, timeout=10)
        assert answer.status_code == 422
        assert answer.json()["detail"][0]["loc"][0] == "body"

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

    def test_another_table_is_not_found(self, static: str) -> None:
        for method, path in (("GET", "colour/config"), ("POST", "colour/scoring")):
            answer = requests.request(method, f"{static}/{path}", timeout=10)
            assert answer.status_code == 404
            assert "performance, powerconsumption" in answer.json()["detail"]


def test_the_framework_reads_what_they_say(sample: str, static: str) -> None:
    for url, paths in ((sample, [""]), (static, ["/performance", "/powerconsumption"])):
        for path in paths:
            parse_remote_config(requests.get(f"{url}{path}/config", timeout=10).content)
            answer = requests.post(f"{url}{path}/scoring", json={"data": [series(["1"], node="n")]}, timeout=10)
            assert parse_response(answer.content).results


def test_the_scripts_of_the_samples_run(sample: str, static: str) -> None:
    for name, url in (("sample-scorer", sample), ("static-scorer", static)):
        script = samples_dir() / name / "test_scorer.sh"
        done = subprocess.run([script, url], capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        assert '"results"' in done.stdout


@pytest.mark.parametrize("name", ["sample-scorer", "static-scorer"])
def test_their_manifests_are_good_ones(name: str) -> None:
    file: Path = samples_dir() / name / "manifests" / "dynamicscorer.yaml"
    found = parse_documents(file.read_text(), file.name)
    assert found
    for document in found:
        assert isinstance(document, ParsedDocument), document
        assert isinstance(document.object, DynamicScorer)
        assert document.object.spec.config_url.startswith(f"http://{name}.dynamic-scoring.svc:8000/")
