"""The tutorial's joined queries on a real Prometheus: their series can be told apart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from dsf import http
from dsf.api.promql import split_queries
from dsf.up.httpcheck import make_http_check
from tests.support.child import Child
from tests.support.commandline import dsf
from tests.support.document import File, parse_steps
from tests.support.httpserver import ScriptedServer, answer
from tests.support.programs import find
from tests.support.redisserver import free_port
from tests.support.scoringservices import ROOT, load, served, set_hub_timeout
from tests.support.wait import wait_for

EXPOSITION = b"""# TYPE node_cpu_seconds_total counter
node_cpu_seconds_total{cpu="0",mode="idle"} 7
# TYPE node_memory_MemAvailable_bytes gauge
node_memory_MemAvailable_bytes 4e9
# TYPE node_memory_MemTotal_bytes gauge
node_memory_MemTotal_bytes 1.6e10
"""


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """URL of a Prometheus that scrapes one node every second."""
    port = free_port()
    config = tmp_path / "prometheus.yml"
    with ScriptedServer(answer(EXPOSITION, Content_Type="text/plain; version=0.0.4")) as node:
        config.write_text(
            "global: {scrape_interval: 1s}\nscrape_configs:\n  - job_name: node\n    static_configs:\n"
            f"      - {{targets: ['{node.url.removeprefix('http://')}'], labels: {{node: n1}}}}\n"
        )
        options = (f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}", "--log.level=warn")
        process = Child((str(find("prometheus")), *options, f"--web.listen-address=127.0.0.1:{port}"), tmp_path / "log")
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(make_http_check(f"{url}/-/ready"), 60, f"Prometheus; {process.tail()}")
            yield url
        finally:
            process.kill()


@pytest.fixture
def scorer_file(tmp_path: Path) -> Path:
    """The tutorial's scorer of several queries."""
    page = parse_steps(ROOT / "docs" / "tutorial.md")
    (text,) = (step.text for step in page if isinstance(step, File) and step.path == "spare.py")
    file = tmp_path / "spare.py"
    file.write_text(text)
    return file


def check(url: str, *options: str) -> dict[str, tuple[str, str]]:
    """Return outcome and message of each point of `dsf scorer check`."""
    report = json.loads(dsf("scorer", "check", f"{url}/config", "-o", "json", "--skip", "large", *options).stdout)
    return {point["point"]: (point["outcome"], point["message"]) for point in report["points"]}


def test_check_judges_a_scorer_of_joined_queries(
    prometheus: str, scorer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_hub_timeout(monkeypatch, 60)
    judged_points = ("one-series", "many-series", "labels", "range", "determinism")
    with served(load(scorer_file).app) as url:
        points = check(url)
        assert {name: points[name][0] for name in judged_points} == dict.fromkeys(judged_points, "pass"), points
        assert points["one-series"][1] == "1 result"
        assert points["many-series"][1] == "10 results"
        # The real series: one node, with the load of this moment.
        wait_for(lambda: check(url, "--prometheus", prometheus)["query"][0] == "pass", 60, "two scrapes", interval=1)
        points = check(url, "--prometheus", prometheus, "--dimension", "${node}")
    assert points["query"] == ("pass", "1 series, 1 series; the other points use them")
    assert (points["many-series"], points["labels"]) == (("pass", "1 result"), ("pass", "1 names such as 'n1'"))


def test_series_of_joined_queries_have_distinct_labels(prometheus: str, scorer_file: Path) -> None:
    def labels(query: str) -> dict[str, str]:
        result = json.loads(
            http.get(
                f"{prometheus}/api/v1/query?{urlencode({'query': query})}",
                deadline=time.monotonic() + 60,
                max_bytes=10**6,
            )
        )
        assert len(result["data"]["result"]) == 1, result
        return dict(result["data"]["result"][0]["metric"])

    queries = split_queries(load(scorer_file).app.config()["source"]["params"]["query"])
    label_sets = wait_for(lambda: [labels(query) for query in queries], 60, "two scrapes")
    assert label_sets == [{"node": "n1", "asked": "cpu"}, {"node": "n1", "asked": "memory"}]
