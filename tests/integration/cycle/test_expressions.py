"""Cycles of expressions: the queries to a real HTTP server, and the scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from dsf.api.summary import ScorerSummary
from dsf.cycle.composite import LastResults
from dsf.cycle.stages import Cycle, Stages
from dsf.errors import CycleError
from dsf.settings import Settings
from tests.integration.cycle.test_stages import NoSecrets
from tests.support.httpserver import ScriptedServer, answer, matrix

_SERIES = {"metric": {"node": "n1"}, "values": [[1, "0.25"], [2, "0.75"]]}


def vector(kind: str, result: Any) -> Any:
    return answer({"status": "success", "data": {"resultType": kind, "result": result}})


@pytest.fixture
def source() -> Iterator[ScriptedServer]:
    with ScriptedServer(matrix(_SERIES)) as server:
        yield server


def run(source: ScriptedServer, stages: Stages | None = None, range_end: float = 1000.0, **values: object) -> Cycle:
    fields: dict[str, object] = {
        "name": "free",
        "score_name": "free",
        "source_type": "Prometheus",
        "source_endpoint": f"{source.url}/api/v1/query",
        "source_query": "up",
        "timeout_seconds": 60,
        "expression": "100 * last",
    }
    cycle = Cycle("free", "run", ScorerSummary.model_validate(fields | values), math.inf, range_end=range_end)
    stages = stages or Stages(Settings(cluster="paris"), NoSecrets())
    stages.score(cycle, b"".join(stages.fetch(cycle).pieces))
    return cycle


def scores(cycle: Cycle) -> list[tuple[dict[str, str], float]]:
    assert cycle.response is not None
    return [(result.labels, result.score) for result in cycle.response.results]


def test_range_query_is_scored_by_its_samples(source: ScriptedServer) -> None:
    cycle = run(source, source_range=300, source_step=30, expression="100 * mean")
    assert scores(cycle) == [({"node": "n1"}, 50.0)]
    assert source.requests[0].query == {"query": "up", "start": "690", "end": "990", "step": "30"}
    assert set(cycle.timings) == {"fetch", "score"}
    assert (cycle.counts["series"], cycle.counts["results"]) == (1, 1)


@pytest.mark.parametrize(
    ("kind", "result", "expected"),
    [
        ("vector", [{"metric": {"node": "n1"}, "value": [1, "0.5"]}], [({"node": "n1"}, 50.0)]),
        ("scalar", [1, "0.5"], [({}, 50.0)]),
        ("matrix", [_SERIES], [({"node": "n1"}, 75.0)]),
        ("vector", [], []),
    ],
)
def test_without_range_and_step_the_query_is_instant(
    source: ScriptedServer, kind: str, result: Any, expected: list[tuple[dict[str, str], float]]
) -> None:
    source.script(vector(kind, result))
    assert scores(run(source)) == expected
    assert source.requests[0].query == {"query": "up", "time": "1000"}


def test_instant_query_reads_the_samples_of_the_current_second(source: ScriptedServer) -> None:
    run(source, range_end=1000.25)
    assert source.requests[0].query == {"query": "up", "time": "1000.250"}


def test_path_of_range_queries_is_named_in_the_error(source: ScriptedServer) -> None:
    source.script(vector("string", [1, "a"]))
    with pytest.raises(CycleError, match="the response is a 'string' and not a vector"):
        run(source)


def test_queries_are_numbered_through_all_sources(source: ScriptedServer) -> None:
    endpoint = f"{source.url}/api/v1/query"
    further_sources = [{"name": "b", "type": "Prometheus", "endpoint": endpoint, "query": "c"}]
    cycle = run(source, source_query="a; b", source_name="a", sources=further_sources, expression="query")
    assert [score for _, score in scores(cycle)] == [0.0, 1.0, 2.0]


def test_expression_without_a_source_reads_the_cluster(source: ScriptedServer) -> None:
    text = 'cluster == "paris" ? double(clusterLabels.price) : 0'
    cycle = run(source, source_type="None", expression=text, cluster_labels={"price": "12.5"})
    assert scores(cycle) == [({}, 12.5)]
    assert source.requests == []


def test_composite_reads_the_last_results_of_other_scorers(source: ScriptedServer) -> None:
    results = LastResults()
    results.put(ScorerSummary(name="cluster-free", score_name="free"), [({"node": "n1"}, 80.0)], 60.0)
    stages = Stages(Settings(), NoSecrets(), find_results=results.find)
    inputs = [{"scorer": "cluster-free", "as": "cpu"}, {"scorer": "power", "as": "watts", "default": -100}]
    values: dict[str, object] = {"source_type": "Scores", "scores": inputs, "expression": "0.75 * cpu + 0.25 * watts"}
    assert scores(run(source, stages, **values)) == [({"node": "n1"}, 35.0)]
    values["scores"] = [*inputs[:1], {"scorer": "power", "as": "watts"}]
    with pytest.raises(CycleError, match="'watts' is missing, the score of 'power'") as error:
        run(source, stages, **values)
    assert (error.value.stage, error.value.reason) == ("score", "missing_input")


def test_expression_of_a_newer_hub_fails_its_scorer_alone(source: ScriptedServer) -> None:
    with pytest.raises(CycleError, match="there is no function newer") as error:
        run(source, expression="newer(last)")
    assert error.value.reason == "bad_expression"
