"""`dsf scorer test` and `dsf scorer check` for scorers with an expression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commandline import dsf
from tests.support.httpserver import ScriptedServer, answer

_MANIFEST = """
apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
kind: DynamicScorer
metadata: {name: free, namespace: open-cluster-management}
spec:
  description: d
  scoreDimensionFormat: ${node}
  source: {type: Prometheus, host: http://prometheus.test:9090, params: {query: up}}
  scoring: {expression: EXPRESSION, params: {name: free, interval: 30}}
---
apiVersion: dynamic-scoring.open-cluster-management.io/v1alpha1
kind: DynamicScorer
metadata: {name: mix, namespace: open-cluster-management}
spec:
  description: d
  scoreDimensionFormat: ${node}
  source: {type: Scores, scores: [{scorer: free, as: cpu}, {scorer: power, as: watts}]}
  scoring: {expression: 0.5 * cpu + 0.5 * watts, params: {name: mix, interval: 30}}
"""
_CASES = """
manifest: manifest.yaml
tests:
- name: free
  dynamic_scorer: free
  input_series: [{series: '{node="a"}', values: 0.25}, {series: '{node="b"}', values: 2}]
  exp_items: [{name: a, value: 25}, {name: b, value: VALUE}]
- name: mix
  dynamic_scorer: mix
  input_series:
  - {series: '{node="a"}', values: 50, source: cpu}
  - {series: '{}', values: 100, source: watts}
  exp_items: [{name: a, value: 75}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "manifest.yaml").write_text(_MANIFEST.replace("EXPRESSION", "100 * last"))
    (tmp_path / "cases.yaml").write_text(_CASES.replace("VALUE", "100"))
    return tmp_path


def check(*arguments: str) -> tuple[int, list[tuple[str, str, str]]]:
    result = dsf("scorer", "check", *arguments, "-o", "json")
    report: dict[str, Any] = json.loads(result.stdout)
    return result.exit_code, [(point["point"], point["outcome"], point["message"]) for point in report["points"]]


def test_cases_of_expressions_run_without_a_scoring_api(folder: Path) -> None:
    result = dsf("scorer", "test", str(folder / "cases.yaml"), "-o", "json")
    report = json.loads(result.stdout)
    assert [case["failures"] for case in report["cases"]] == [[], []]
    assert result.exit_code == 0


def test_wrong_item_of_an_expression_fails_its_case(folder: Path) -> None:
    (folder / "cases.yaml").write_text(_CASES.replace("VALUE", "50"))
    result = dsf("scorer", "test", str(folder / "cases.yaml"), "-o", "json")
    assert result.exit_code == 1
    (failure,) = json.loads(result.stdout)["cases"][0]["failures"]
    assert "exp_items[1] 'b': expected 50, got 100" in failure


@pytest.mark.parametrize(
    ("expression", "cause"),
    [
        ("double(labels.zone)", "2 refused: there is no 'zone': neither label nor key, for the series {node=\"a\"}"),
        ("last > 9 ? last : null", "the expression is null for each of 2 series"),
    ],
)
def test_missing_item_of_a_case_names_the_cause(folder: Path, expression: str, cause: str) -> None:
    (folder / "manifest.yaml").write_text(_MANIFEST.replace("EXPRESSION", f"'{expression}'"))
    result = dsf("scorer", "test", str(folder / "cases.yaml"), "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["cases"][0]["failures"][-1].endswith(f"got no such item but no items; {cause}")


def test_case_of_a_composite_without_a_series_of_an_input_has_no_item(folder: Path) -> None:
    series = "  - {series: '{}', values: 100, source: watts}\n"
    text = (
        _CASES.replace("VALUE", "100").replace(series, "").replace("exp_items: [{name: a, value: 75}]", "exp_items: []")
    )
    (folder / "cases.yaml").write_text(text)
    result = dsf("scorer", "test", str(folder / "cases.yaml"))
    assert result.exit_code == 0, result.output


def test_scoring_api_beside_expressions_is_refused(folder: Path) -> None:
    (folder / "cases.yaml").write_text("url: http://a\n" + _CASES.replace("VALUE", "100"))
    result = dsf("scorer", "test", str(folder / "cases.yaml"))
    assert result.exit_code == 2
    assert "none for a manifest with expressions" in result.stderr


def test_check_of_a_manifest_compiles_each_expression(folder: Path) -> None:
    code, points = check(str(folder / "manifest.yaml"))
    assert code == 0
    assert points == [
        ("free: expression", "pass", "it reads last"),
        ("free: query", "skipped", "not run; --prometheus URL runs it and evaluates the expression"),
        ("mix: expression", "pass", "it reads cpu, watts"),
        ("mix: query", "skipped", "the source is not Prometheus"),
    ]


def test_check_of_a_wrong_expression_fails_with_its_column(folder: Path) -> None:
    (folder / "manifest.yaml").write_text(_MANIFEST.replace("EXPRESSION", "100 * lats"))
    code, points = check(str(folder / "manifest.yaml"))
    assert code == 1
    assert points[0][:2] == ("free: expression", "fail")
    assert "column 7: there is no variable 'lats'" in points[0][2]


def test_check_with_a_prometheus_evaluates_the_expression(folder: Path) -> None:
    result = [{"metric": {"node": node}, "value": [1, value]} for node, value in (("a", "0.5"), ("b", "NaN"))]
    with ScriptedServer(answer({"status": "success", "data": {"resultType": "vector", "result": result}})) as server:
        code, points = check(str(folder / "manifest.yaml"), "--prometheus", server.url)
        assert server.requests[0].path == "/api/v1/query"
    assert code == 0
    assert points[1] == (
        "free: query",
        "warn",
        '2 series, 1 results, 1 refused: the value is nan, for the series {node="b"}',
    )


def test_check_of_a_manifest_without_an_expression_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    code, points = check(str(tmp_path / "empty.yaml"))
    assert code == 1
    assert "has no DynamicScorer with scoring.expression" in points[0][2]
