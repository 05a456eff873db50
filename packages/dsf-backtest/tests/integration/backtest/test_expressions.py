"""Backtests of scorers with an expression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.api.expressions import ScoreInput
from tests.integration.cli.conftest import Dsf, dsf, fleet
from tests.integration.exporter.fleet import Fleet
from tests.support.httpserver import ScriptedServer, answer

__all__ = ["dsf", "fleet"]


def command(file: Path, url: str, *options: str, **spec: Any) -> list[str]:
    scorer = {
        "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
        "kind": "DynamicScorer",
        "metadata": {"name": "free", "namespace": "open-cluster-management"},
        "spec": {
            "description": "x",
            "scoreDimensionFormat": "${node}",
            "source": {"type": "Prometheus", "host": "http://prometheus.svc", "params": {"query": "up"}},
            "scoring": {"expression": "100 * last", "params": {"name": "free", "interval": 30}},
            **spec,
        },
    }
    file.write_text(yaml.safe_dump(scorer))
    return ["backtest", "-f", str(file), "-c", "c1", "--source-url", url, "--since", "50m", "--rate", "1000", *options]


def vector(value: str) -> Any:
    result = [{"metric": {"node": "n1"}, "value": [1, value]}]
    return answer({"status": "success", "data": {"resultType": "vector", "result": result}})


def test_each_moment_of_an_expression_is_an_instant_query_at_its_time(dsf: Dsf, tmp_path: Path) -> None:
    with ScriptedServer(vector("0.25")) as source:
        result = dsf(*command(tmp_path / "free.yaml", source.url, "-o", "json"))
        (report,) = json.loads(result.stdout)["backtests"]
        times = [int(request.query["time"]) for request in source.requests]
    assert (report["moments"], report["outcomes"]) == (11, {"ok": 11})
    assert (report["items"][0]["minimum"], report["items"][0]["maximum"]) == (25, 25)
    assert [time - times[0] for time in times] == list(range(0, 3001, 300))


@pytest.mark.parametrize(
    ("spec", "options", "code", "words"),
    [
        ({}, ("--scorer-url", "http://127.0.0.1:1"), 2, "has an expression and no scoring API: leave out --scorer-url"),
        (
            {"scoring": {"expression": "lats", "params": {"name": "free", "interval": 30}}},
            (),
            1,
            "spec.scoring.expression: column 1: there is no variable 'lats'",
        ),
    ],
)
def test_expression_that_cannot_be_backtested_is_refused_with_the_cause(
    dsf: Dsf, tmp_path: Path, spec: dict[str, Any], options: tuple[str, ...], code: int, words: str
) -> None:
    with ScriptedServer(vector("1")) as source:
        result = dsf(*command(tmp_path / "free.yaml", source.url, *options, **spec))
        assert source.requests == []
    assert result.exit_code == code, result.output
    assert words in " ".join(result.stderr.split())


def test_compare_of_two_expressions_shows_their_difference_at_each_moment(dsf: Dsf, tmp_path: Path) -> None:
    with ScriptedServer(vector("0.25")) as source:
        files = []
        for name, text in (("before", "100 * last"), ("after", "scale(last, 0, 0.5)")):
            spec = {
                "source": {"type": "Prometheus", "host": source.url, "params": {"query": "up"}},
                "scoring": {"expression": text, "params": {"name": "free", "interval": 30}},
            }
            files.append(tmp_path / f"{name}.yaml")
            command(files[-1], source.url, **spec)
        options = ("--since", "50m", "--rate", "1000", "-c", "c1", "-o", "json")
        result = dsf("compare", *map(str, files), *options)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["moments"] == 11
    (item,) = report["items"]
    assert (item["item"], item["meanA"], item["meanB"], item["largestDifference"]) == ("n1", 25, 0, -25)


def test_compare_of_a_composite_with_its_input_shows_the_scores_of_now(dsf: Dsf, fleet: Fleet) -> None:
    sample = fleet.registry.read_scorer("sample-scorer")
    inputs = (ScoreInput(scorer="sample-scorer", name="cpu"),)
    fleet.registry.put_scorer(sample.model_copy(update={"name": "mix-scorer", "score_name": "mix", "inputs": inputs}))
    for cluster in ("worker01", "worker02"):
        fleet.entry(cluster, "mix-scorer")
        fleet.score(cluster, "mix-scorer")
    result = dsf("compare", "sample-scorer", "mix-scorer", "-o", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [(item["item"], item["meanDifference"]) for item in report["items"]] == [("n1", 0), ("n2", 0)] * 2
