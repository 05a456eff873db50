"""Backtests of scorers with an expression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.cli.conftest import Dsf, dsf
from tests.support.httpserver import ScriptedServer, answer

__all__ = ["dsf"]


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
        (
            {"source": {"type": "Scores", "scores": [{"scorer": "a", "as": "last"}]}},
            (),
            2,
            "the scores that it combines are those of now",
        ),
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
