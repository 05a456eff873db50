"""dsf explain: one cycle, against real HTTP servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dsf import keys
from dsf.api.hold import Waiting
from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.cli import context
from dsf.conformance import samples
from dsf.http.access import set_aliases
from dsf.store.pairs import SCORE, PairScore
from dsf.store.registry import HoldRule, ScorerRecord
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


@pytest.fixture
def servers() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    """A source that has one series and a scoring API that answers RESULTS."""
    with ScriptedServer(matrix(SERIES)) as source, ScriptedServer(answer(RESULTS)) as scorer:
        yield source, scorer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's output folder with one cluster."""
    cluster = tmp_path / "_out" / "clusters" / "worker01"
    cluster.mkdir(parents=True)
    monkeypatch.setenv("DSF_OUT_DIR", str(tmp_path / "_out"))
    return cluster


def deliver(folder: Path, servers: tuple[ScriptedServer, ScriptedServer], **fields: object) -> Path:
    """Write the ConfigMap with one summary, as the work agent delivers it."""
    source, scorer = servers
    values: dict[str, object] = {
        "name": "sample-scorer",
        "score_name": "sample_score",
        "source_type": "Prometheus",
        "source_endpoint": f"{source.url}/api/v1/query_range",
        "source_query": 'up{job="a;b"}; rate(x[1m])',
        "source_range": 60,
        "source_step": 15,
        "scoring_endpoint": f"{scorer.url}/scoring",
        "scoring_interval": 10,
        "score_destination": "AddOnPlacementScore",
        "score_dimension_format": "${node}",
        "timeout_seconds": 60,
    }
    summary = ScorerSummary.model_validate({**values, **fields})
    manifest = {"kind": "ConfigMap", "data": {"summaries": dump_summaries([summary])}}
    file = folder / "dynamic-scoring-config.yaml"
    file.write_text(yaml.safe_dump(manifest))
    return file


def test_a_query_by_post_is_shown_with_its_form(
    dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]
) -> None:
    deliver(folder, servers, source_method="POST", source_query="up")
    text = dsf("explain", "sample-scorer", "--cluster", "worker01").stdout
    assert f"POST     {servers[0].url}/api/v1/query_range\n   with     form query=up&start=" in text
    assert servers[0].requests[0].method == "POST"


def test_every_step_is_shown(dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    deliver(folder, servers)
    result = dsf("explain", "sample-scorer", "--cluster", "worker01")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert 'query    up{job="a;b"}' in text
    assert "query    rate(x[1m])" in text
    assert f"GET      {servers[0].url}/api/v1/query_range?query=up%7Bjob%3D%22a%3Bb%22%7D&start=" in text
    assert "1 series" in text
    assert 'head     {"metric":{"node":"n1"}' in text
    assert f"POST     {servers[1].url}/scoring" in text
    assert "HTTP 200 after" in text
    rows = [line for line in text.splitlines() if '"metric"' in line and "head" not in line]
    fates = [row.split()[0] for row in rows]
    assert fates == ["replaced", "item", "item", "refused", "refused"]
    assert "null_score" in rows[3]
    assert "empty_dimension" in rows[4]
    assert text.splitlines()[-1].rstrip() == "partial: 2 of 5 results are used. Nothing was published."
    # The scoring API gets what an agent would send.
    source, scorer = servers
    assert [request.query["query"] for request in source.requests] == ['up{job="a;b"}', "rate(x[1m])"]
    assert int(source.requests[0].query["end"]) - int(source.requests[0].query["start"]) == 60
    assert [request.json() for request in scorer.requests] == [{"data": [SERIES, SERIES]}]


def test_the_request_is_saved_as_a_sample_for_the_check(
    dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer], tmp_path: Path
) -> None:
    deliver(folder, servers)
    file = tmp_path / "sample.json"
    assert dsf("explain", "sample-scorer", "--cluster", "worker01", "--save", str(file)).exit_code == 0
    assert samples.load(file)[0]["metric"] == {"node": "n1"}
    result = dsf("explain", "sample-scorer", "--cluster", "worker01", "--save", str(tmp_path / "none" / "x"))
    assert result.exit_code == 2
    assert "--save" in result.output


def test_as_json(dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    deliver(folder, servers)
    report = loaded(dsf("explain", "sample-scorer", "--cluster", "worker01", "-o", "json"))
    assert [(query["status"], query["series"]) for query in report["queries"]] == [(200, 1), (200, 1)]
    assert report["request"]["series"] == 2
    assert report["request"]["bytes"] == len(json.dumps({"data": [SERIES, SERIES]}, separators=(",", ":")))
    assert report["outcome"] == "partial"
    fates = [(one["fate"], one["name"], one["value"], one["note"]) for one in report["results"]]
    assert fates == [
        ("replaced", "n1", None, "a later result has the same item name"),
        ("item", "n2", 100, "1000 is outside of -100..100"),
        ("item", "n1", -3, ""),
        ("refused", "", None, "null_score"),
        ("refused", "", None, "empty_dimension"),
    ]


def test_rounding_down_is_said(dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    servers[1].script(answer({"results": [{"metric": {"node": "n1"}, "score": -12.25}]}))
    deliver(folder, servers)
    report = loaded(dsf("explain", "sample-scorer", "--cluster", "worker01", "-o", "json"))
    assert (report["results"][0]["value"], report["results"][0]["note"]) == (-13, "rounded down from -12.25")
    assert report["outcome"] == "ok"


def test_a_bad_query_shows_prometheus_own_words(
    dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]
) -> None:
    error = {"status": "error", "errorType": "bad_data", "error": "1:4: parse error: unexpected identifier"}
    servers[0].script(answer(error, 400))
    deliver(folder, servers)
    result = dsf("explain", "sample-scorer", "--cluster", "worker01")
    assert result.exit_code == 1
    assert "HTTP 400" in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last.startswith("error: fetch failed (bad_query)")
    assert "1:4: parse error: unexpected identifier" in last
    assert servers[1].requests == []


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [("oops", 500, "http_error"), ("<html>", 200, "bad_answer"), ('{"results": 1}', 200, "bad_answer")],
)
def test_a_scoring_api_that_fails(
    dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer], body: str, status: int, reason: str
) -> None:
    servers[1].script(answer(body, status))
    deliver(folder, servers)
    result = dsf("explain", "sample-scorer", "--cluster", "worker01", "-o", "json")
    assert result.exit_code == 1
    report = loaded(result)
    assert (report["outcome"], report["stage"], report["reason"]) == ("error", "score", reason)
    assert report["response"]["status"] == status
    assert body in report["message"] + report["response"]["head"]


def test_nobody_answers(dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    deliver(folder, servers, scoring_endpoint="http://127.0.0.1:1/scoring")
    result = dsf("explain", "sample-scorer", "--cluster", "worker01")
    assert result.exit_code == 1
    assert (
        "error: score failed (connection_failed): POST http://127.0.0.1:1/scoring: Connection refused" in result.stdout
    )


def test_a_scorer_without_a_source(dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    deliver(folder, servers, source_type="None", source_endpoint="", source_query="")
    result = dsf("explain", "sample-scorer", "--cluster", "worker01")
    assert result.exit_code == 0
    assert "nothing  is queried" in result.stdout
    assert servers[1].requests[0].json() == {"data": []}


def test_an_unknown_source(dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    deliver(folder, servers, source_type="Carbon")
    result = dsf("explain", "sample-scorer", "--cluster", "worker01")
    assert result.exit_code == 1
    assert "error: fetch failed (unsupported_source): source type 'Carbon' is not one of" in result.stdout


def test_a_plug_in_s_source_is_asked_with_the_scorer_s_token(
    dsf: Dsf,
    folder: Path,
    servers: tuple[ScriptedServer, ScriptedServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    install_sample(tmp_path / "packages")
    secret = folder.parents[2] / "_secrets" / "worker01" / "files"
    secret.mkdir(parents=True)
    (secret / "token").write_text(TOKEN)
    (secret / "usable-for").write_text("127.0.0.1")
    # Whatever it says of its token must not be shown.
    servers[0].script(answer(f"time,value,node\n1,2,n1\n1,3,{TOKEN}\n"), answer(f"time\n{TOKEN}\n"))
    servers[1].script(answer({"results": [{"metric": {"node": "n1"}, "score": 1}]}))
    reference = {"source_endpoint_auth_name": "files", "source_endpoint_auth_key": "token"}
    deliver(folder, servers, source_type="csv.example.com", source_query="", source_step=0, source_range=0, **reference)
    forget()
    try:
        result = dsf("explain", "sample-scorer", "--cluster", "worker01")
        assert result.exit_code == 0, result.output
        assert "1. Fetch from source csv.example.com" in result.stdout
        assert f"GET      {servers[0].url}/api/v1/query_range" in result.stdout
        assert "with     Authorization: Bearer ***" in result.stdout
        assert "2 series" in result.stdout
        assert servers[0].requests[0].headers["Authorization"] == f"Bearer {TOKEN}"
        data = servers[1].requests[0].json()["data"]
        assert data[0] == {"metric": {"node": "n1"}, "values": [[1, "2"]]}
        failed = dsf("explain", "sample-scorer", "--cluster", "worker01")
        assert "error: fetch failed (bad_answer): the first line has no column value" in failed.stdout
        deliver(folder, servers, source_type="csv.example.com", source_options={"separator": ";"}, **reference)
        refused = dsf("explain", "sample-scorer", "--cluster", "worker01")
        assert "error: fetch failed (bad_options): source type 'csv.example.com' (dsf_csv_source 1.0" in refused.stdout
        assert "options.separator: is not a known field" in refused.stdout
        assert len(servers[0].requests) == 2
        assert TOKEN not in result.output + failed.output + refused.output
    finally:
        forget()


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_tokens_are_sent_and_never_shown(
    dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer], output: str
) -> None:
    secret = folder.parents[2] / "_secrets" / "worker01" / "scorer-token"
    secret.mkdir(parents=True)
    (secret / "token").write_text(TOKEN + "\n")
    (secret / "usable-for").write_text("127.0.0.1")
    # A server that repeats what it was sent, in good answers and in bad ones.
    echo = {"results": [{"metric": {"node": TOKEN}, "score": 1}] * 40, "you sent": f"Bearer {TOKEN}"}
    servers[1].script(answer(echo))
    reference = {"scoring_endpoint_auth_name": "scorer-token", "scoring_endpoint_auth_key": "token"}
    deliver(folder, servers, **reference, source_endpoint=f"http://user:{TOKEN}@127.0.0.1:{servers[0].port}/query")
    result = dsf("explain", "sample-scorer", "--cluster", "worker01", "-o", output)
    assert result.exit_code == 0, result.output
    assert servers[1].requests[0].headers["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in result.output
    assert "***" in result.stdout
    servers[1].script(answer(f"not for {TOKEN}", 403))
    result = dsf("explain", "sample-scorer", "--cluster", "worker01", "-o", output)
    assert result.exit_code == 1
    assert TOKEN not in result.output
    assert "unauthorized" in result.stdout


def test_an_answer_that_spells_the_token_otherwise_is_not_shown(
    dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]
) -> None:
    secret = folder.parents[2] / "_secrets" / "worker01" / "scorer-token"
    secret.mkdir(parents=True)
    (secret / "token").write_text(TOKEN + "\n")
    (secret / "usable-for").write_text("127.0.0.1")
    spelt = "".join(f"\\u{ord(char):04x}" for char in TOKEN)
    servers[1].script(answer(f'{{"results": [{{"metric": {{"node": "{spelt}"}}, "score": 1}}]}}'))
    deliver(folder, servers, scoring_endpoint_auth_name="scorer-token", scoring_endpoint_auth_key="token")
    report = loaded(dsf("explain", "sample-scorer", "--cluster", "worker01", "-o", "json"))
    assert (report["outcome"], report["results"]) == ("ok", [])
    assert "repeats a token" in report["response"]["head"]


def test_a_missing_token_is_named(dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    deliver(folder, servers, source_endpoint_auth_name="prometheus-token", source_endpoint_auth_key="token")
    result = dsf("explain", "sample-scorer", "--cluster", "worker01")
    assert result.exit_code == 1
    said = "".join(result.stdout.split())
    assert "(secret_missing):key'token'ofSecret'prometheus-token'ismissing;itsplaceisthefile" in said
    place = folder.parents[2] / "_secrets" / "worker01" / "prometheus-token" / "token"
    assert str(place) in said
    assert servers[0].requests == []


def test_only_some_results_are_listed(dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    deliver(folder, servers)
    result = dsf("explain", "sample-scorer", "--cluster", "worker01", "--limit", "2")
    assert "3 more; --limit shows them" in result.stdout
    assert not [line for line in result.stdout.splitlines() if line.lstrip().startswith("refused")]


@pytest.mark.parametrize(("since", "words"), [(1.7e9, "until "), (None, ": too near")])
def test_what_the_hub_holds_back_is_said_with_the_rule(
    dsf: Dsf,
    fleet: Fleet,
    folder: Path,
    servers: tuple[ScriptedServer, ScriptedServer],
    since: float | None,
    words: str,
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
        held={"n1": Waiting(20, since, 8)},
    )
    fleet.redis.hset(keys.pair_key("worker01", "sample-scorer"), SCORE, score.model_dump_json())
    deliver(folder, servers)
    lines = dsf("explain", "sample-scorer", "--cluster", "worker01").stdout.splitlines()
    place = lines.index("4. Held back by the hub")
    assert "n1: 12 stays, 20 is held back" in lines[place + 1]
    assert words in lines[place + 1]
    assert lines[place + 2].endswith("a change is published from 5 points on, if it lasts 120 s")
    report = loaded(dsf("explain", "sample-scorer", "--cluster", "worker01", "-o", "json"))
    assert [(item["name"], item["waiting"], "waitingUntil" in item) for item in report["held"]] == [
        ("n1", 20, since is not None)
    ]


def test_metrics_only(dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    deliver(folder, servers, score_destination="None")
    report = loaded(dsf("explain", "sample-scorer", "--cluster", "worker01", "-o", "json"))
    assert [result["fate"] for result in report["results"]] == ["metric", "metric", "metric", "refused", "metric"]


def test_a_name_that_leads_elsewhere_on_this_cluster(
    dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DSF_REDIS_URL")
    monkeypatch.delenv("DSF_OUT_DIR")
    aliases = {"worker01": {"prometheus.test:9090": f"127.0.0.1:{servers[0].port}"}}
    context.write(redis_url="redis://127.0.0.1:1/0", out_dir=folder.parent.parent, host_aliases=aliases)
    deliver(folder, servers, source_endpoint="http://prometheus.test:9090/api/v1/query_range")
    try:
        result = dsf("explain", "sample-scorer", "--cluster", "worker01")
    finally:
        set_aliases({})
        context.remove()
    assert result.exit_code == 0, result.output
    assert "GET      http://prometheus.test:9090/api/v1/query_range" in result.stdout
    shown = [line for line in result.stdout.splitlines() if line.strip().startswith(("GET", "POST"))]
    assert shown[0].endswith(f" (here: 127.0.0.1:{servers[0].port})")
    assert "here" not in shown[-1], "the scoring API's address is its own"


# --- where the configuration comes from ------------------------------------------------------------------------------


def test_a_file_that_was_saved_by_hand(
    dsf: Dsf, tmp_path: Path, servers: tuple[ScriptedServer, ScriptedServer]
) -> None:
    file = deliver(tmp_path, servers)
    assert dsf("explain", "sample-scorer", "--cluster", "anything", "--config", str(file)).exit_code == 0


def test_the_cluster_may_be_in_the_environment(
    dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(folder, servers)
    monkeypatch.setenv("DSF_CLUSTER", "worker01")
    assert loaded(dsf("explain", "sample-scorer", "-o", "json"))["cluster"] == "worker01"
    monkeypatch.delenv("DSF_CLUSTER")
    result = dsf("explain", "sample-scorer")
    assert result.exit_code == 2
    assert "--cluster" in result.stderr


def test_the_source_kubernetes_needs_the_agents_cluster(
    dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]
) -> None:
    deliver(folder, servers, source_type="Kubernetes", source_endpoint="", source_query="")
    result = dsf("explain", "sample-scorer", "--cluster", "worker01")
    assert result.exit_code == 1
    assert "GET" not in result.stdout
    assert "(unsupported_source): the sources Kubernetes and Object are the agent's own cluster" in result.stdout


def test_without_any_configuration_it_is_a_usage_error(dsf: Dsf) -> None:
    result = dsf("explain", "sample-scorer", "--cluster", "worker01")
    assert result.exit_code == 2
    assert "DSF_AGENT_CONFIG" in result.stderr


def test_a_scorer_that_was_not_delivered(
    dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]
) -> None:
    deliver(folder, servers)
    result = dsf("explain", "nobody", "--cluster", "worker01")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: scorer 'nobody' was not delivered to cluster 'worker01'")
    assert "has: sample-scorer)" in result.stderr


@pytest.mark.parametrize("cluster", ["mars", "../clusters/worker01"])
def test_a_cluster_that_is_not_there(dsf: Dsf, folder: Path, cluster: str) -> None:
    result = dsf("explain", "sample-scorer", "--cluster", cluster)
    assert result.exit_code == 1
    assert "is accepted" in result.stderr
    assert "has: worker01" in result.stderr


@pytest.mark.parametrize("text", ["{", "a: b", '[{"name": ""}]'])
def test_a_file_that_cannot_be_used(dsf: Dsf, tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    result = dsf("explain", "sample-scorer", "--cluster", "worker01", "--config", str(file))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {file}: ")
    assert len(result.stderr.splitlines()) == 1
    missing = dsf("explain", "sample-scorer", "--cluster", "worker01", "--config", str(tmp_path / "none"))
    assert "there is no such file" in missing.stderr


def test_each_of_several_sources_is_shown_with_its_secrets_masked(
    dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]
) -> None:
    secret = folder.parents[2] / "_secrets" / "worker01" / "energy"
    secret.mkdir(parents=True)
    (secret / "token").write_text(TOKEN)
    (secret / "usable-for").write_text("127.0.0.1")
    with ScriptedServer(matrix(SERIES, SERIES)) as other:
        power = {"name": "power", "type": "Prometheus", "endpoint": f"{other.url}/api/v1/query_range"}
        power |= {"query": "watts", "endpoint_auth_name": "energy", "endpoint_auth_key": "token"}
        deliver(folder, servers, source_name="load", sources=[power | {"range": 60, "step": 15}])
        text = dsf("explain", "sample-scorer", "--cluster", "worker01").stdout
        report = loaded(dsf("explain", "sample-scorer", "--cluster", "worker01", "-o", "json"))
        assert {request.headers["Authorization"] for request in other.requests} == {f"Bearer {TOKEN}"}
    assert not any("Authorization" in request.headers for request in servers[0].requests)
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


def test_items_of_several_formats(dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    deliver(folder, servers, more_dimension_formats=("${pod}", "${node}!", "n2"))
    report = loaded(dsf("explain", "sample-scorer", "--cluster", "worker01", "-o", "json"))
    fates = [(one["fate"], one["name"], one["value"]) for one in report["results"]]
    # The result without a node has no item by the format of which "!" alone would be left.
    assert fates == [
        *(("replaced", "n1", None), ("item", "n2", 100), ("item", "n1", -3), ("item", "p1", 5)),
        *(("replaced", "n1!", None), ("item", "n2!", 100), ("item", "n1!", -3)),
        *[("replaced", "n2", None)] * 3,
        *(("refused", "", None), ("replaced", "n2", None)),
    ]


def test_results_are_put_together(dsf: Dsf, folder: Path, servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    deliver(folder, servers, aggregate_by=("node",), aggregate_with="max")
    report = loaded(dsf("explain", "sample-scorer", "--cluster", "worker01", "-o", "json"))
    fates = [(one["fate"], one["name"], one["value"]) for one in report["results"]]
    assert fates == [("refused", "", None), ("item", "n1", 12), ("item", "n2", 100), ("refused", "", None)]
    assert [one["note"] for one in report["results"]][::3] == ["null_score", "empty_dimension"]
