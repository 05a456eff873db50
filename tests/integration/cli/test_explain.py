"""dsf explain: one cycle, against real HTTP servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import Result

from dsf import keys
from dsf.api.scorerule import HeldValue, HoldRule
from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.cli import context
from dsf.conformance import samples
from dsf.http.access import set_aliases
from dsf.store.pairs import PairScore
from dsf.store.registry import ScorerRecord
from tests.integration.cli.conftest import Dsf, fleet, loaded
from tests.integration.exporter.fleet import Fleet
from tests.support.httpserver import ScriptedServer, answer, matrix
from tests.support.plugins import forget, install_sample

__all__ = ["fleet"]

TOKEN = "s3same-s3same"
SERIES = {"metric": {"node": "n1"}, "values": [[1, "1"], [2, "2"]]}
RESULTS = {
    "results": [
        {"metric": {"node": "n1"}, "score": 12.7},
        {"metric": {"node": "n2"}, "score": 1000},
        {"metric": {"node": "n1", "extra": "x"}, "score": -3},
        {"metric": {"node": "n3"}, "score": None},
        {"metric": {"pod": "p1"}, "score": 5},
    ]
}


class ExplainSetup:
    """A cluster with one delivered scorer: its source has one series and its scoring API responds with RESULTS."""

    def __init__(self, dsf: Dsf, folder: Path, source: ScriptedServer, scorer: ScriptedServer) -> None:
        self.folder = folder
        self.source = source
        self.scorer = scorer
        self._dsf = dsf

    def deliver(self, folder: Path | None = None, **fields: object) -> Path:
        """Write the ConfigMap with one summary, as the work agent delivers it."""
        values: dict[str, object] = {
            "name": "sample-scorer",
            "score_name": "sample_score",
            "source_type": "Prometheus",
            "source_endpoint": f"{self.source.url}/api/v1/query_range",
            "source_query": 'up{job="a;b"}; rate(x[1m])',
            "source_range": 60,
            "source_step": 15,
            "scoring_endpoint": f"{self.scorer.url}/scoring",
            "scoring_interval": 10,
            "score_destination": "AddOnPlacementScore",
            "score_dimension_format": "${node}",
            "timeout_seconds": 60,
        }
        summary = ScorerSummary.model_validate({**values, **fields})
        manifest = {"kind": "ConfigMap", "data": {"summaries": dump_summaries([summary])}}
        file = (folder or self.folder) / "dynamic-scoring-config.yaml"
        file.write_text(yaml.safe_dump(manifest))
        return file

    def secret(self, name: str) -> Path:
        """Return the folder of a Secret of the cluster, with TOKEN under the key `token`."""
        folder = self.folder.parents[2] / "_secrets" / "worker01" / name
        folder.mkdir(parents=True)
        (folder / "token").write_text(f"{TOKEN}\n")
        (folder / "usable-for").write_text("127.0.0.1")
        return folder

    def explain(self, *arguments: str) -> Result:
        """`dsf explain` of this scorer on this cluster."""
        return self._dsf("explain", "sample-scorer", "--cluster", "worker01", *arguments)

    def report(self) -> Any:
        """Return the same as data."""
        return loaded(self.explain("-o", "json"))


@pytest.fixture
def bed(dsf: Dsf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExplainSetup]:
    """The hub's output folder with one cluster, and both servers."""
    folder = tmp_path / "_out" / "clusters" / "worker01"
    folder.mkdir(parents=True)
    monkeypatch.setenv("DSF_OUT_DIR", str(tmp_path / "_out"))
    with ScriptedServer(matrix(SERIES)) as source, ScriptedServer(answer(RESULTS)) as scorer:
        yield ExplainSetup(dsf, folder, source, scorer)


def test_explain_shows_the_form_of_a_post_query(bed: ExplainSetup) -> None:
    bed.deliver(source_method="POST", source_query="up")
    text = bed.explain().stdout
    assert f"POST     {bed.source.url}/api/v1/query_range\n   with     form query=up&start=" in text
    assert bed.source.requests[0].method == "POST"


def test_explain_shows_every_step(bed: ExplainSetup) -> None:
    bed.deliver()
    result = bed.explain()
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert 'query    up{job="a;b"}' in text
    assert "query    rate(x[1m])" in text
    assert f"GET      {bed.source.url}/api/v1/query_range?query=up%7Bjob%3D%22a%3Bb%22%7D&start=" in text
    assert "1 series" in text
    assert 'head     {"metric":{"node":"n1"}' in text
    assert f"POST     {bed.scorer.url}/scoring" in text
    assert "HTTP 200 after" in text
    rows = [line for line in text.splitlines() if '"metric"' in line and "head" not in line]
    fates = [row.split()[0] for row in rows]
    assert fates == ["replaced", "item", "item", "refused", "refused"]
    assert "null_score" in rows[3]
    assert "empty_dimension" in rows[4]
    assert text.splitlines()[-1].rstrip() == "partial: 2 of 5 results are used. Nothing was published."
    # The scoring API gets the same request as from an agent.
    source, scorer = bed.source, bed.scorer
    assert [request.query["query"] for request in source.requests] == ['up{job="a;b"}', "rate(x[1m])"]
    assert int(source.requests[0].query["end"]) - int(source.requests[0].query["start"]) == 60
    assert [request.json() for request in scorer.requests] == [{"data": [SERIES, SERIES]}]


def test_explain_saves_the_request_as_a_sample_for_the_check(bed: ExplainSetup, tmp_path: Path) -> None:
    bed.deliver()
    file = tmp_path / "sample.json"
    assert bed.explain("--save", str(file)).exit_code == 0
    assert samples.load(file)[0]["metric"] == {"node": "n1"}
    result = bed.explain("--save", str(tmp_path / "none" / "x"))
    assert result.exit_code == 2
    assert "--save" in result.output


def test_explain_prints_json(bed: ExplainSetup) -> None:
    bed.deliver()
    report = bed.report()
    assert [(query["status"], query["series"]) for query in report["queries"]] == [(200, 1), (200, 1)]
    assert report["request"]["series"] == 2
    assert report["request"]["bytes"] == len(json.dumps({"data": [SERIES, SERIES]}, separators=(",", ":")))
    assert report["outcome"] == "partial"
    fates = [(result["fate"], result["name"], result["value"], result["note"]) for result in report["results"]]
    assert fates == [
        ("replaced", "n1", None, "a later result has the same item name"),
        ("item", "n2", 100, "1000 is outside of -100..100"),
        ("item", "n1", -3, ""),
        ("refused", "", None, "null_score"),
        ("refused", "", None, "empty_dimension"),
    ]


def test_explain_reports_rounding_down(bed: ExplainSetup) -> None:
    bed.scorer.script(answer({"results": [{"metric": {"node": "n1"}, "score": -12.25}]}))
    bed.deliver()
    report = bed.report()
    assert (report["results"][0]["value"], report["results"][0]["note"]) == (-13, "rounded down from -12.25")
    assert report["outcome"] == "ok"


def test_explain_shows_the_prometheus_error_of_an_invalid_query(bed: ExplainSetup) -> None:
    error = {"status": "error", "errorType": "bad_data", "error": "1:4: parse error: unexpected identifier"}
    bed.source.script(answer(error, 400))
    bed.deliver()
    result = bed.explain()
    assert result.exit_code == 1
    assert "HTTP 400" in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last.startswith("error: fetch failed (bad_query)")
    assert "1:4: parse error: unexpected identifier" in last
    assert bed.scorer.requests == []


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [("oops", 500, "http_error"), ("<html>", 200, "bad_answer"), ('{"results": 1}', 200, "bad_answer")],
)
def test_explain_reports_a_failing_scoring_api(bed: ExplainSetup, body: str, status: int, reason: str) -> None:
    bed.scorer.script(answer(body, status))
    bed.deliver()
    result = bed.explain("-o", "json")
    assert result.exit_code == 1
    report = loaded(result)
    assert (report["outcome"], report["stage"], report["reason"]) == ("error", "score", reason)
    assert report["response"]["status"] == status
    assert body in report["message"] + report["response"]["head"]


def test_explain_reports_an_unreachable_scoring_api(bed: ExplainSetup) -> None:
    bed.deliver(scoring_endpoint="http://127.0.0.1:1/scoring")
    result = bed.explain()
    assert result.exit_code == 1
    assert (
        "error: score failed (connection_failed): POST http://127.0.0.1:1/scoring: Connection refused" in result.stdout
    )


def test_explain_of_a_scorer_without_a_source_queries_nothing(bed: ExplainSetup) -> None:
    bed.deliver(source_type="None", source_endpoint="", source_query="")
    result = bed.explain()
    assert result.exit_code == 0
    assert "nothing  is queried" in result.stdout
    assert bed.scorer.requests[0].json() == {"data": []}


def test_explain_reports_an_unknown_source(bed: ExplainSetup) -> None:
    bed.deliver(source_type="Carbon")
    result = bed.explain()
    assert result.exit_code == 1
    assert "error: fetch failed (unsupported_source): source type 'Carbon' is not one of" in result.stdout


def test_explain_of_a_plugin_source_sends_and_hides_the_token(
    bed: ExplainSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    install_sample(tmp_path / "packages")
    bed.secret("files")
    # Its text about the token must not be shown.
    bed.source.script(answer(f"time,value,node\n1,2,n1\n1,3,{TOKEN}\n"), answer(f"time\n{TOKEN}\n"))
    bed.scorer.script(answer({"results": [{"metric": {"node": "n1"}, "score": 1}]}))
    reference = {"source_endpoint_auth_name": "files", "source_endpoint_auth_key": "token"}
    bed.deliver(source_type="csv.example.com", source_query="", source_step=0, source_range=0, **reference)
    forget()
    try:
        result = bed.explain()
        assert result.exit_code == 0, result.output
        assert "1. Fetch from source csv.example.com" in result.stdout
        assert f"GET      {bed.source.url}/api/v1/query_range" in result.stdout
        assert "with     Authorization: Bearer ***" in result.stdout
        assert "2 series" in result.stdout
        assert bed.source.requests[0].headers["Authorization"] == f"Bearer {TOKEN}"
        data = bed.scorer.requests[0].json()["data"]
        assert data[0] == {"metric": {"node": "n1"}, "values": [[1, "2"]]}
        failed_fetch = bed.explain()
        assert "error: fetch failed (bad_answer): the first line has no column value" in failed_fetch.stdout
        bed.deliver(source_type="csv.example.com", source_options={"separator": ";"}, **reference)
        refused_options = bed.explain()
        assert (
            "error: fetch failed (bad_options): source type 'csv.example.com' (dsf_csv_source 1.0"
            in refused_options.stdout
        )
        assert "options.separator: is not a known field" in refused_options.stdout
        assert len(bed.source.requests) == 2
        assert TOKEN not in result.output + failed_fetch.output + refused_options.output
    finally:
        forget()


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_explain_sends_tokens_and_never_shows_them(bed: ExplainSetup, output: str) -> None:
    bed.secret("scorer-token")
    # A server that repeats received headers, in good responses and in bad ones.
    echo = {"results": [{"metric": {"node": TOKEN}, "score": 1}] * 40, "you sent": f"Bearer {TOKEN}"}
    bed.scorer.script(answer(echo))
    reference = {"scoring_endpoint_auth_name": "scorer-token", "scoring_endpoint_auth_key": "token"}
    bed.deliver(**reference, source_endpoint=f"http://user:{TOKEN}@127.0.0.1:{bed.source.port}/query")
    result = bed.explain("-o", output)
    assert result.exit_code == 0, result.output
    assert bed.scorer.requests[0].headers["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in result.output
    assert "***" in result.stdout
    bed.scorer.script(answer(f"not for {TOKEN}", 403))
    result = bed.explain("-o", output)
    assert result.exit_code == 1
    assert TOKEN not in result.output
    assert "unauthorized" in result.stdout


def test_explain_masks_a_differently_encoded_token_in_a_response(bed: ExplainSetup) -> None:
    bed.secret("scorer-token")
    spelt = "".join(f"\\u{ord(char):04x}" for char in TOKEN)
    bed.scorer.script(answer(f'{{"results": [{{"metric": {{"node": "{spelt}"}}, "score": 1}}]}}'))
    bed.deliver(scoring_endpoint_auth_name="scorer-token", scoring_endpoint_auth_key="token")
    report = bed.report()
    assert (report["outcome"], report["results"]) == ("ok", [])
    assert "repeats a token" in report["response"]["head"]


def test_explain_masks_a_token_that_is_part_of_a_number(bed: ExplainSetup) -> None:
    """As the number of a tenant is."""
    (bed.secret("scorer-token") / "token").write_text("42\n")
    bed.scorer.script(answer({"results": [{"metric": {"node": "n1"}, "score": 42.5}]}))
    bed.deliver(scoring_endpoint_auth_name="scorer-token", scoring_endpoint_auth_key="token")
    report = bed.report()
    [result] = report["results"]
    assert (report["outcome"], result["value"]) == ("ok", 42)
    assert "42" not in result["result"] + report["response"]["head"]


def test_explain_names_a_missing_token_and_its_file(bed: ExplainSetup) -> None:
    bed.deliver(source_endpoint_auth_name="prometheus-token", source_endpoint_auth_key="token")
    result = bed.explain()
    assert result.exit_code == 1
    unspaced_output = "".join(result.stdout.split())
    assert "(secret_missing):key'token'ofSecret'prometheus-token'ismissing;itsplaceisthefile" in unspaced_output
    token_file = bed.folder.parents[2] / "_secrets" / "worker01" / "prometheus-token" / "token"
    assert str(token_file) in unspaced_output
    assert bed.source.requests == []


def test_explain_limits_the_listed_results(bed: ExplainSetup) -> None:
    bed.deliver()
    result = bed.explain("--limit", "2")
    assert "3 more; --limit shows them" in result.stdout
    assert not [line for line in result.stdout.splitlines() if line.lstrip().startswith("refused")]


@pytest.mark.parametrize(("differs_since", "expected_text"), [(1.7e9, "until "), (None, ": too near")])
def test_explain_shows_items_held_back_and_their_rule(
    fleet: Fleet, bed: ExplainSetup, differs_since: float | None, expected_text: str
) -> None:
    hold = HoldRule(min_change=5, for_seconds=120)
    record = ScorerRecord(name="sample-scorer", score_name="sample_score", interval=10, validity=300, hold=hold)
    fleet.registry.put_scorer(record)
    score = PairScore(
        run="1",
        score_name="sample_score",
        at=fleet.now,
        valid_until=fleet.now + 300,
        items=[("n1", 12), ("n2", 3)],
        held={"n1": HeldValue(20, differs_since, 8)},
    )
    fleet.redis.hset(keys.pair_key("worker01", "sample-scorer"), "score", score.model_dump_json())
    bed.deliver()
    lines = bed.explain().stdout.splitlines()
    heading_index = lines.index("4. Held back by the hub")
    assert "n1: 12 stays, 20 is held back" in lines[heading_index + 1]
    assert expected_text in lines[heading_index + 1]
    assert lines[heading_index + 2].endswith("a change is published from 5 points on, if it lasts 120 s")
    report = bed.report()
    assert [(item["name"], item["waiting"], "waitingUntil" in item) for item in report["held"]] == [
        ("n1", 20, differs_since is not None)
    ]


def test_explain_of_a_metrics_only_scorer_shows_metrics(bed: ExplainSetup) -> None:
    bed.deliver(score_destination="None")
    report = bed.report()
    assert [result["fate"] for result in report["results"]] == ["metric", "metric", "metric", "refused", "metric"]


def test_explain_shows_the_address_behind_a_host_alias(bed: ExplainSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSF_REDIS_URL")
    monkeypatch.delenv("DSF_OUT_DIR")
    aliases = {"worker01": {"prometheus.test:9090": f"127.0.0.1:{bed.source.port}"}}
    bed.deliver(source_endpoint="http://prometheus.test:9090/api/v1/query_range")
    try:
        with context.publish_demo(
            redis_url="redis://127.0.0.1:1/0", out_dir=bed.folder.parent.parent, host_aliases=aliases
        ):
            result = bed.explain()
    finally:
        set_aliases({})
    assert result.exit_code == 0, result.output
    assert "GET      http://prometheus.test:9090/api/v1/query_range" in result.stdout
    request_lines = [line for line in result.stdout.splitlines() if line.strip().startswith(("GET", "POST"))]
    assert request_lines[0].endswith(f" (here: 127.0.0.1:{bed.source.port})")
    assert "here" not in request_lines[-1], "the scoring API's address is its own"


# --- where the configuration comes from ------------------------------------------------------------------------------


def test_explain_reads_a_saved_configuration_file(
    dsf: Dsf, tmp_path: Path, bed: ExplainSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DSF_OUT_DIR")
    file = bed.deliver(tmp_path)
    assert dsf("explain", "sample-scorer", "--cluster", "anything", "--config", str(file)).exit_code == 0


def test_explain_reads_the_cluster_from_the_environment(
    dsf: Dsf, bed: ExplainSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.deliver()
    monkeypatch.setenv("DSF_CLUSTER", "worker01")
    assert loaded(dsf("explain", "sample-scorer", "-o", "json"))["cluster"] == "worker01"
    monkeypatch.delenv("DSF_CLUSTER")
    result = dsf("explain", "sample-scorer")
    assert result.exit_code == 2
    assert "--cluster" in result.stderr


def test_explain_of_source_kubernetes_needs_the_cluster_of_the_agent(bed: ExplainSetup) -> None:
    bed.deliver(source_type="Kubernetes", source_endpoint="", source_query="")
    result = bed.explain()
    assert result.exit_code == 1
    assert "GET" not in result.stdout
    assert "(unsupported_source): the sources Kubernetes and Object are the agent's own cluster" in result.stdout


def test_explain_without_any_configuration_is_a_usage_error(dsf: Dsf) -> None:
    result = dsf("explain", "sample-scorer", "--cluster", "worker01")
    assert result.exit_code == 2
    assert "DSF_AGENT_CONFIG" in result.stderr


def test_explain_of_an_undelivered_scorer_is_an_error(dsf: Dsf, bed: ExplainSetup) -> None:
    bed.deliver()
    result = dsf("explain", "nobody", "--cluster", "worker01")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: scorer 'nobody' was not delivered to cluster 'worker01'")
    assert "has: sample-scorer)" in result.stderr


@pytest.mark.parametrize("cluster", ["mars", "../clusters/worker01"])
def test_explain_of_an_unknown_cluster_is_an_error(dsf: Dsf, bed: ExplainSetup, cluster: str) -> None:
    result = dsf("explain", "sample-scorer", "--cluster", cluster)
    assert result.exit_code == 1
    assert "is accepted" in result.stderr
    assert "has: worker01" in result.stderr


@pytest.mark.parametrize("text", ["{", "a: b", '[{"name": ""}]'])
def test_explain_names_an_unusable_file(bed: ExplainSetup, tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    result = bed.explain("--config", str(file))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {file}: ")
    assert len(result.stderr.splitlines()) == 1
    absent_file = bed.explain("--config", str(tmp_path / "none"))
    assert "there is no such file" in absent_file.stderr


def test_explain_shows_several_sources_with_masked_secrets(bed: ExplainSetup) -> None:
    bed.secret("energy")
    with ScriptedServer(matrix(SERIES, SERIES)) as other:
        power = {"name": "power", "type": "Prometheus", "endpoint": f"{other.url}/api/v1/query_range"}
        power |= {"query": "watts", "endpoint_auth_name": "energy", "endpoint_auth_key": "token"}
        bed.deliver(source_name="load", sources=[power | {"range": 60, "step": 15}])
        text = bed.explain().stdout
        report = bed.report()
        assert {request.headers["Authorization"] for request in other.requests} == {f"Bearer {TOKEN}"}
    assert not any("Authorization" in request.headers for request in bed.source.requests)
    lines = [line.strip() for line in text.splitlines()]
    assert (
        lines.index("source   load") < lines.index("source   power") < lines.index("with     Authorization: Bearer ***")
    )
    assert f"GET      {other.url}/api/v1/query_range?query=watts" in text
    assert TOKEN not in text + json.dumps(report)
    assert [(query["source"], query["series"]) for query in report["queries"]] == [
        ("load", 1),
        ("load", 1),
        ("power", 2),
    ]
    assert report["request"]["series"] == 4


def test_explain_shows_items_of_several_formats(bed: ExplainSetup) -> None:
    bed.deliver(more_dimension_formats=("${pod}", "${node}!", "n2"))
    report = bed.report()
    fates = [(result["fate"], result["name"], result["value"]) for result in report["results"]]
    # The result without a node has no item by the format of which "!" alone would be left.
    assert fates == [
        *(("replaced", "n1", None), ("item", "n2", 100), ("item", "n1", -3), ("item", "p1", 5)),
        *(("replaced", "n1!", None), ("item", "n2!", 100), ("item", "n1!", -3)),
        *[("replaced", "n2", None)] * 3,
        *(("refused", "", None), ("replaced", "n2", None)),
    ]


def test_explain_shows_aggregated_results(bed: ExplainSetup) -> None:
    bed.deliver(aggregate_by=("node",), aggregate_with="max")
    report = bed.report()
    fates = [(result["fate"], result["name"], result["value"]) for result in report["results"]]
    assert fates == [("refused", "", None), ("item", "n1", 12), ("item", "n2", 100), ("refused", "", None)]
    assert [result["note"] for result in report["results"]][::3] == ["null_score", "empty_dimension"]
