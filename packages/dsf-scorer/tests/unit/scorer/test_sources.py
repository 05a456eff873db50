"""Scorers of several sources: /config, arguments of the function, and refused definitions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from dsf.scorer import Limits, Prometheus, Score, Scorer, ScorerError, Series, Source, Sources

from .apps import TWO, mean_scorer

LOAD, POWER = Prometheus(query="load", range=60, step=15), Source(type="Kubernetes")


def request(**sources: list[Any]) -> dict[str, Any]:
    return {"data": next(iter(sources.values())), "sources": sources}


def series(node: str, *values: float) -> dict[str, Any]:
    return {"metric": {"node": node}, "values": [[60 * i, f"{value}"] for i, value in enumerate(values)]}


def scorer_of_sources(**values: Any) -> Scorer:
    fields = {"name": "n", "description": "d", "score_name": "s", "interval": 30}
    return Scorer(**(fields | {"sources": {"load": LOAD, "power": POWER}} | values))


def ratio_scorer(**values: Any) -> Scorer:
    """Return a scorer of load divided by power of each node."""
    scorer = scorer_of_sources(**values)

    @scorer.score_sources
    def ratio(sources: Sources) -> Iterable[Score]:
        power = {entry.labels["node"]: entry.values.mean() for entry in sources["power"]}
        for entry in sources["load"]:
            yield entry.score(entry.values.mean() / power[entry.labels["node"]])

    return scorer


def test_function_receives_series_by_source_name() -> None:
    body = request(load=[series("a", 10, 30), series("b", 5)], power=[series("b", 5), series("a", 4)])
    with TestClient(ratio_scorer()) as client:
        answer = client.post("/scoring", json=body)
    scores = {result["metric"]["node"]: result["score"] for result in answer.json()["results"]}
    assert scores == {"a": 5.0, "b": 1.0}


async def _score_counts(sources: Sources) -> list[Score]:
    return [Score(len(sources["load"]) + len(sources["power"]), {})]


def test_async_function_with_sources() -> None:
    scorer = scorer_of_sources()
    scorer.score_sources(_score_counts)
    with TestClient(scorer) as client:
        body = request(load=[series("a", 1)], power=[])
        assert client.post("/scoring", json=body).json()["results"][0]["score"] == 1
        # A request without a body has no series.
        assert client.post("/scoring").json()["results"][0]["score"] == 0


def test_config_has_all_and_the_first_for_older_hubs() -> None:
    config = ratio_scorer().config()
    assert config["source"] == LOAD.document()
    assert config["sources"] == [{"name": "load", **LOAD.document()}, {"name": "power", "type": "Kubernetes"}]


def test_scorer_of_one_source_ignores_other_sources() -> None:
    with TestClient(mean_scorer()) as client:
        answer = client.post("/scoring", json=TWO | {"sources": {"x": [series("a", 1)]}})
        assert answer.json()["results"] == [{"metric": {"pod": "a"}, "score": 6.0}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"data": []}, "it has no sources: this scorer takes several sources"),
        ({"data": [], "sources": 5}, "sources is no object"),
        ({"data": [], "sources": {"load": []}}, "the request has no source 'power'; it has load"),
        ({"data": [], "sources": {"load": [], "power": 5}}, "sources['power'] is not a list of series"),
        ({"data": [], "sources": {"load": [], "power": [5]}}, "sources['power'][0] is not an object"),
        ({"sources": {"load": [], "power": []}}, 'the request is not {"data": [...]}'),
    ],
)
def test_request_without_all_sources_is_refused(body: dict[str, Any], expected: str) -> None:
    with TestClient(ratio_scorer()) as client:
        answer = client.post("/scoring", json=body)
    assert answer.status_code == 422
    assert expected in answer.json()["detail"]


def test_environment_variables_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_POWER_SOURCE_HOST", "http://power.example")
    monkeypatch.setenv("MY_LOAD_SOURCE_STEP", "5")
    service = ratio_scorer(env="MY_")
    assert (service.sources["power"].host, service.sources["load"].step) == ("http://power.example", 5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"source": LOAD}, "give one of them"),
        ({"sources": {}}, "0 of them; a scorer has 1 to 8"),
        ({"sources": {f"s{i}": LOAD for i in range(9)}}, "9 of them"),
        ({"sources": {"a b": LOAD}}, "'a b' is no name"),
    ],
)
def test_invalid_sources_are_refused(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(ScorerError, match=re.escape(expected)):
        scorer_of_sources(**values)


def test_example_of_the_documentation_runs() -> None:
    page = (Path(__file__).parents[5] / "docs" / "sources.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {
        "Scorer": Scorer,
        "Prometheus": Prometheus,
        "Score": Score,
        "Sources": Sources,
        "Iterable": Iterable,
        "Series": Series,
    }
    exec(code, names)
    with TestClient(names["app"]) as client:
        body = request(load=[series("a", 2, 4), series("b", 1)], power=[series("a", 100)])
        assert client.post("/scoring", json=body).json()["results"] == [{"metric": {"node": "a"}, "score": 3.0}]


def test_limits_count_each_series_and_sample_once() -> None:
    """The first source is also sent as `data`."""
    body = request(load=[series("a", 1, 2), series("b", 3)], power=[series("a", 4), series("b", 5)])
    for limits, status in (
        (Limits(series=4, samples=5), 200),
        (Limits(series=3, samples=5), 413),
        (Limits(series=4, samples=4), 413),
    ):
        with TestClient(ratio_scorer(limits=limits)) as client:
            answer = client.post("/scoring", json=body)
        assert answer.status_code == status, (limits, answer.text)


def test_host_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(ScorerError, match=r"auth\.basic") as caught:
        Prometheus(query="up", range=60, step=15, host="http://user:canary@prometheus")
    assert "canary" not in str(caught.value)
