"""Backtests of scorers that combine the scores of others."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.backtest.errors import BacktestError
from dsf.backtest.runner import BacktestRunner, RunRequest
from dsf.backtest.runstore import read_runs
from dsf.settings import Settings
from dsf.web.objects import read_from_folder
from dsf.web.pagedata import PageDataReader
from dsf.web.pages import Sources
from tests.integration.cli.conftest import Dsf, dsf
from tests.integration.exporter.fleet import SAMPLE, good_fleet
from tests.support.httpserver import ScriptedServer, answer
from tests.support.recordedprometheus import RecordedPrometheus
from tests.support.wait import wait_for

__all__ = ["dsf"]

NAMESPACE = "open-cluster-management"
MIX = "0.7 * cpu + 0.3 * watts"


def cpu(at: int) -> float:
    """Return another value at each moment."""
    return float(at // 300 % 90)


def watts(at: int) -> float:
    return float(at // 300 % 2 * 50)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Prometheus with the last two hours of two metrics of a node."""
    end = int(time.time()) // 60 * 60
    past = {'cpu{node="n1"}': cpu, 'watts{node="n1"}': watts}
    folder = tmp_path_factory.mktemp("past") / "prometheus"
    with RecordedPrometheus(folder, past, range(end - 7200, end + 600, 60)) as server:
        yield server.url


def scorer(name: str, source: dict[str, Any], expression: str = "last", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
        "kind": "DynamicScorer",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "description": "x",
            "scoreDimensionFormat": "${node}",
            "source": source,
            "scoring": {"expression": expression, "params": {"name": name, "interval": 30}},
            **spec,
        },
    }


def query(text: str, host: str = "http://prometheus.svc") -> dict[str, Any]:
    return {"type": "Prometheus", "host": host, "params": {"query": text}}


def scores(*inputs: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Scores", "scores": list(inputs)}


def mix(expression: str = MIX, **watts_input: Any) -> dict[str, Any]:
    both = scores({"scorer": "cpu", "as": "cpu"}, {"scorer": "watts", "as": "watts", **watts_input})
    return scorer("mix", both, expression)


def write(file: Path, *manifests: dict[str, Any]) -> str:
    file.write_text(yaml.safe_dump_all(manifests))
    return str(file)


def backtest(dsf: Dsf, file: str, url: str, *options: str) -> list[dict[str, Any]]:
    """Return the moments of a backtest of the scorer in a file."""
    options = ("-c", "c1", "--source-url", url, "--since", "50m", "--rate", "1000", "-o", "jsonl", *options)
    result = dsf("backtest", "-f", file, *options)
    assert result.exit_code in (0, 1), result.output
    return [record for record in map(json.loads, result.stdout.splitlines()) if "at" in record]


def refusal(dsf: Dsf, file: str, *options: str) -> str:
    """Return why a backtest is refused before it sends a request."""
    with ScriptedServer(answer({})) as source:
        result = dsf("backtest", "-f", file, "-c", "c1", "--source-url", source.url, "--since", "50m", *options)
        assert source.requests == []
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    return " ".join(result.stderr.split())


def test_composite_has_the_value_of_its_inputs_at_each_moment(dsf: Dsf, prometheus: str, tmp_path: Path) -> None:
    inputs = (scorer("cpu", query("cpu")), scorer("watts", query("watts")))
    records = backtest(dsf, write(tmp_path / "mix.yaml", *inputs, mix()), prometheus)
    assert len(records) == 11
    assert len({record["items"]["n1"] for record in records}) == 11
    for record in records:
        at = record["at"]
        assert record["outcome"] == "ok"
        assert record["items"] == {"n1": math.floor(0.7 * cpu(at) + 0.3 * watts(at))}
        assert record["series"] == 2


def test_composite_of_a_composite_has_the_value_of_each_moment(dsf: Dsf, prometheus: str, tmp_path: Path) -> None:
    twice = scorer("twice", scores({"scorer": "mix", "as": "mix"}, {"scorer": "cpu", "as": "cpu"}), "mix - cpu")
    file = write(tmp_path / "x.yaml", twice, mix(), scorer("cpu", query("cpu")), scorer("watts", query("watts")))
    records = backtest(dsf, file, prometheus)
    assert [record["items"]["n1"] for record in records] == [
        math.floor(0.7 * cpu(record["at"]) + 0.3 * watts(record["at"]) - cpu(record["at"])) for record in records
    ]


@pytest.mark.parametrize("default", [None, -10.0])
def test_missing_input_has_its_default_or_no_item(
    dsf: Dsf, prometheus: str, tmp_path: Path, default: float | None
) -> None:
    options = {} if default is None else {"default": default}
    inputs = (scorer("cpu", query("cpu")), scorer("watts", query("watts > 0")))
    records = backtest(dsf, write(tmp_path / "mix.yaml", *inputs, mix(**options)), prometheus)
    records_without_input = [record for record in records if not watts(record["at"])]
    assert len(records_without_input) in (5, 6)
    for record in records_without_input:
        if default is None:
            assert (record["outcome"], record.get("items", {})) == ("partial", {})
        else:
            value = math.floor(0.7 * cpu(record["at"]) + 0.3 * default)
            assert (record["outcome"], record["items"]) == ("ok", {"n1": value})


@pytest.mark.parametrize("default", [None, -10.0])
def test_input_that_fails_has_its_default_or_fails_the_moment(
    dsf: Dsf, prometheus: str, tmp_path: Path, default: float | None
) -> None:
    options = {} if default is None else {"default": default}
    inputs = (scorer("cpu", query("cpu")), scorer("watts", query("nothing(watts)")))
    records = backtest(dsf, write(tmp_path / "mix.yaml", *inputs, mix(**options)), prometheus)
    if default is None:
        assert {(record["outcome"], record["reason"]) for record in records} == {("error", "missing_input")}
        start = "'watts' is missing, the score of 'watts': it failed at this moment: "
        assert records[0]["message"].startswith(start)
        assert "unknown function" in records[0]["message"]
    else:
        assert {record["outcome"] for record in records} == {"ok"}
        assert records[0]["items"] == {"n1": math.floor(0.7 * cpu(records[0]["at"]) - 3)}


def test_last_score_of_an_input_counts_until_it_expires(dsf: Dsf, tmp_path: Path) -> None:
    data = {"resultType": "vector", "result": [{"metric": {"node": "n1"}, "value": [1, "7"]}]}
    good, bad = answer({"status": "success", "data": data}), answer({}, 500)
    inner = scorer("cpu", query("cpu"), execution={"validitySeconds": 600})
    outer = scorer("mix", scores({"scorer": "cpu", "as": "cpu"}), "cpu")
    with ScriptedServer(good, bad, bad, bad, good) as source:
        records = backtest(dsf, write(tmp_path / "mix.yaml", inner, outer), source.url, "--since", "20m")
    assert [record.get("items", {}) for record in records] == [{"n1": 7}, {"n1": 7}, {"n1": 7}, {}, {"n1": 7}]
    assert [record["outcome"] for record in records] == ["ok", "ok", "ok", "partial", "ok"]


def test_input_is_aggregated_before_it_is_combined(dsf: Dsf, tmp_path: Path) -> None:
    samples = [("n1", "7"), ("n2", "8")]
    result = [{"metric": {"node": node, "namespace": "z"}, "value": [1, value]} for node, value in samples]
    inner = scorer(
        "cpu", query("cpu"), aggregate={"by": ["namespace"], "with": "sum"}, scoreDimensionFormat="${namespace}"
    )
    outer = scorer("mix", scores({"scorer": "cpu", "as": "cpu"}), "2 * cpu", scoreDimensionFormat="${namespace}")
    vector = answer({"status": "success", "data": {"resultType": "vector", "result": result}})
    with ScriptedServer(vector) as source:
        records = backtest(dsf, write(tmp_path / "mix.yaml", inner, outer), source.url)
    assert [record["items"] for record in records] == [{"z": 30}] * 11


def test_scoring_api_of_an_input_is_requested_at_each_moment(dsf: Dsf, prometheus: str, tmp_path: Path) -> None:
    spec = {"configURL": "http://scorer.svc/config", "configSyncMode": "None"}
    inner = scorer("cpu", query("cpu"), **spec, scoring={"params": {"name": "cpu", "interval": 30}})
    inner["spec"]["source"] |= {"path": "/api/v1/query_range"}
    inner["spec"]["source"]["params"] |= {"range": 60, "step": 30}
    outer = scorer("mix", scores({"scorer": "cpu", "as": "cpu"}), "2 * cpu")
    with ScriptedServer(answer({"results": [{"metric": {"node": "n1"}, "score": 3.4}]})) as api:
        file = write(tmp_path / "mix.yaml", inner, outer)
        records = backtest(dsf, file, prometheus, "--scorer-url", api.url)
        assert len(api.requests) == 11
    assert [record["items"] for record in records] == [{"n1": 6}] * 11


def test_input_in_another_file_of_the_folder_is_found(dsf: Dsf, prometheus: str, tmp_path: Path) -> None:
    write(tmp_path / "cpu.yaml", scorer("cpu", query("cpu")))
    (tmp_path / "values.yml").write_text("{{ no manifest")
    file = write(tmp_path / "mix.yaml", mix(), scorer("watts", query("watts")))
    assert {record["outcome"] for record in backtest(dsf, file, prometheus)} == {"ok"}
    write(tmp_path / "cpu2.yaml", scorer("cpu", query("1 - cpu")))
    text = refusal(dsf, file)
    assert f"several files have a DynamicScorer 'cpu': {tmp_path}/cpu.yaml, {tmp_path}/cpu2.yaml; write" in text


def deliver(file: Path, *summaries: ScorerSummary) -> None:
    file.write_text(yaml.safe_dump({"kind": "ConfigMap", "data": {"summaries": dump_summaries(summaries)}}))


def summary(name: str, **fields: Any) -> ScorerSummary:
    common = {"score_name": name, "scoring_interval": 30, "score_dimension_format": "${node}", "expression": "last"}
    return ScorerSummary(name=name, source_type="Prometheus", **{**common, **fields})


def test_input_that_is_registered_is_found_in_the_same_namespace(
    dsf: Dsf, prometheus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = tmp_path / "delivery.json"
    monkeypatch.setenv("DSF_AGENT_CONFIG", str(delivery))
    deliver(delivery, summary("cpu", source_endpoint=f"{prometheus}/api/v1/query", source_query="cpu"))
    file = write(tmp_path / "mix.yaml", mix(), scorer("watts", query("watts")))
    records = backtest(dsf, file, prometheus)
    assert records[0]["items"] == {"n1": math.floor(0.7 * cpu(records[0]["at"]) + 0.3 * watts(records[0]["at"]))}
    deliver(delivery, summary("cpu", source_endpoint="http://p.svc", source_query="cpu", namespace="team-a"))
    assert "it is in namespace 'team-a', the composite in 'open-cluster-management'" in refusal(dsf, file)


@pytest.mark.parametrize("default", [{}, {"default": 1}])
def test_input_that_is_nowhere_is_refused(dsf: Dsf, tmp_path: Path, default: dict[str, Any]) -> None:
    file = write(tmp_path / "mix.yaml", mix(**default), scorer("cpu", query("cpu")))
    text = refusal(dsf, file)
    assert "scorer 'mix' combines the score of 'watts', which cannot be backtested: neither" in text
    assert "nor its folder has it; nothing says what scorer 'watts' is" in text


def test_input_without_a_past_is_refused(dsf: Dsf, tmp_path: Path) -> None:
    nodes = scorer("watts", {"type": "Kubernetes", "params": {"query": "nodes"}})
    file = write(tmp_path / "mix.yaml", mix(), scorer("cpu", query("cpu")), nodes)
    text = refusal(dsf, file)
    assert "combines the score of 'watts', which cannot be backtested: " in text
    assert "a source of type Kubernetes, and the API server has no past" in text


def test_circle_of_composites_is_refused(dsf: Dsf, tmp_path: Path) -> None:
    first = scorer("a", scores({"scorer": "b", "as": "x"}), "x")
    second = scorer("b", scores({"scorer": "a", "as": "x"}), "x")
    text = refusal(dsf, write(tmp_path / "x.yaml", first, second), "a")
    assert "scorer 'a': spec.source.scores: a circle: a -> b -> a" in text


def test_scorer_url_of_expressions_alone_is_refused(dsf: Dsf, tmp_path: Path) -> None:
    file = write(tmp_path / "mix.yaml", mix(), scorer("cpu", query("cpu")), scorer("watts", query("watts")))
    assert "leave out --scorer-url" in refusal(dsf, file, "--scorer-url", "http://127.0.0.1:1")


def test_file_of_a_composite_with_another_input_is_refused(dsf: Dsf, prometheus: str, tmp_path: Path) -> None:
    out = str(tmp_path / "moments.jsonl")
    file = write(tmp_path / "mix.yaml", mix(), scorer("cpu", query("cpu")), scorer("watts", query("watts")))
    assert len(backtest(dsf, file, prometheus, "--out", out)) == 11
    assert len(backtest(dsf, file, prometheus, "--out", out)) == 11
    write(tmp_path / "mix.yaml", mix(), scorer("cpu", query("2 * cpu")), scorer("watts", query("watts")))
    assert "has moments of another question (inputs differ)" in refusal(dsf, file, "--out", out)


def test_compare_of_a_composite_with_its_input_in_the_past(dsf: Dsf, prometheus: str, tmp_path: Path) -> None:
    inner = scorer("cpu", query("cpu", prometheus))
    outer = scorer("mix", scores({"scorer": "cpu", "as": "cpu"}), "cpu + 5.0")
    files = [write(tmp_path / "cpu.yaml", inner), write(tmp_path / "mix.yaml", outer)]
    result = dsf("compare", *files, "--since", "50m", "--rate", "1000", "-c", "c1", "-o", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["moments"] == 11
    assert [(item["item"], item["meanDifference"]) for item in report["items"]] == [("n1", 5)]


def test_page_runs_a_composite_with_the_inputs_that_it_reads(
    redis_client: redis.Redis, prometheus: str, tmp_path: Path
) -> None:
    good_fleet(redis_client)
    (tmp_path / "dynamicscorers").mkdir()
    outer = scorer(SAMPLE, scores({"scorer": "cpu", "as": "cpu"}), "cpu + 5.0")
    inner = scorer("cpu", query("cpu", prometheus))
    for manifest in (outer, inner):
        manifest["metadata"]["namespace"] = "team-a"
        write(tmp_path / "dynamicscorers" / f"{manifest['metadata']['name']}.yaml", manifest)
    reading, scorers = PageDataReader(redis_client), partial(read_from_folder, tmp_path)
    bounded = BacktestRunner(Sources(reading, scorers, settings=Settings(scorer_hosts=["elsewhere.example"])))
    request = RunRequest(SAMPLE, ["worker01"], 3600, 600)
    with pytest.raises(BacktestError, match=r"scorer 'cpu': .*may not name http"):
        bounded.start(request, "ann", lambda: None)
    BacktestRunner(Sources(reading, scorers)).start(request, "ann", lambda: None)
    wait_for(lambda: not read_runs(redis_client, SAMPLE)[0].is_running, 60, "the backtest")
    (run,) = read_runs(redis_client, SAMPLE)
    assert (run.problem, run.backtests[0].outcomes) == ("", {"ok": 7})
    (tmp_path / "dynamicscorers" / "cpu.yaml").unlink()
    with pytest.raises(BacktestError, match="the DynamicScorer 'cpu' cannot be read from here"):
        BacktestRunner(Sources(reading, scorers)).start(request, "ann", lambda: None)
