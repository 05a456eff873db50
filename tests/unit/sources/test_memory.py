"""The series that an agent keeps between cycles: scorers share the limit, and none may use all of it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Mapping

import pytest

from dsf import http
from dsf.api.summary import ScorerSummary
from dsf.errors import HttpError
from dsf.sources import find_source
from dsf.sources.base import FetchContext
from dsf.sources.memory import History, SourceMemory
from dsf.sources.window import Window, WindowBudget, WindowFullError


def scorer(name: str, **fields: object) -> ScorerSummary:
    """Return a scorer that queries a range from a server with its name."""
    values = {"source_type": "OpenTelemetry", "source_endpoint": f"http://{name}", "source_query": "m", **fields}
    return ScorerSummary.model_validate(
        {"name": name, "score_name": name, "source_range": 60, "source_step": 10, "scoring_interval": 10, **values},
        by_name=True,
    )


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of scorers whose series were evicted."""
    names: list[str] = []
    monkeypatch.setattr("dsf.sources.memory.log.warning", lambda _, scorer, **__: names.append(scorer))
    return names


@pytest.mark.parametrize("greedy_series", [10, 11, 30])
def test_scorer_holding_most_series_gives_way(
    monkeypatch: pytest.MonkeyPatch, lost: list[str], greedy_series: int
) -> None:
    series = {"greedy": greedy_series, "modest": 2}
    scorers = {name: scorer(name) for name in series}
    memory = SourceMemory(WindowBudget(10, 1000), lambda: scorers)

    def get(url: str, *, sink: http.Sink, **_: object) -> bytes:
        sink("".join(f'm{{x="{n}"}} 1\n' for n in range(series[url.removeprefix("http://")])).encode())
        return b""

    monkeypatch.setattr(http, "get", get)

    def fetched(name: str) -> int:
        return find_source("OpenTelemetry")(scorers[name], FetchContext(math.inf, 100_000, 2e9, memory=memory)).series

    for _ in range(3):
        for _ in range(2):
            # The update may or may not fit.
            with contextlib.suppress(HttpError):
                fetched("greedy")
        assert fetched("modest") == 2
    # The scorer that lost its history is reported, since its scores use a shorter range.
    assert lost == ["greedy"] * len(lost)
    assert lost


def samples(series: int, now: float) -> dict[Hashable, tuple[Mapping[str, str], float, float]]:
    """Return one sample of each series."""
    return {number: ({"__name__": "m", "x": str(number)}, now, 1.0) for number in range(series)}


def test_scorer_holding_most_samples_gives_way(lost: list[str]) -> None:
    scorers = {name: scorer(name) for name in ("wide", "long")}
    memory = SourceMemory(WindowBudget(1000, 100), lambda: scorers)
    long = memory.get_window(scorers["long"])
    for now in range(95):
        History(scorers["long"], memory, now).keep(samples(1, now))
    # The scorer `wide` has more series, but the limit of samples is the exhausted one.
    wide = memory.get_window(scorers["wide"])
    History(scorers["wide"], memory, 100).keep(samples(8, 100))
    assert (lost, len(long), wide.samples) == (["long"], 0, 8)


def test_scorer_holding_most_labels_gives_way(lost: list[str]) -> None:
    scorers = {name: scorer(name) for name in ("many", "large")}
    memory = SourceMemory(WindowBudget(100, 1000), lambda: scorers)
    labels = {"__name__": "m", **{f"label{number}": f"{number:04}" for number in range(200)}}
    large = memory.get_window(scorers["large"])
    with pytest.raises(WindowFullError):
        large.update(dict.fromkeys(range(50), (labels, 100.0, 1.0)), 100.0)
    # The scorer `many` has more series, but the limit of bytes is the exhausted one.
    many = memory.get_window(scorers["many"])
    History(scorers["many"], memory, 100).keep(samples(60, 100) | {"x": (labels, 100.0, 1.0)})
    assert (lost, len(large), len(many)) == (["large"], 0, 61)


@pytest.mark.parametrize(("pushed", "gives_way"), [(6, False), (7, True)])
def test_pushed_series_are_evicted_beyond_the_share_of_their_scorers(
    lost: list[str], pushed: int, gives_way: bool
) -> None:
    scorers = {"one": scorer("one")}
    memory = SourceMemory(WindowBudget(9, 1000), lambda: scorers)
    received = Window(memory.budget)
    # Two scorers may use two thirds.
    memory.add_shared_window(received, lambda: 2)
    received.update(samples(pushed, 100), 100)
    with contextlib.nullcontext() if gives_way else pytest.raises(HttpError, match="holds 9 series already"):
        History(scorers["one"], memory, 100).keep(samples(4, 100))
    assert (len(received), len(lost)) == ((0, 1) if gives_way else (pushed, 0))


def test_series_with_oversized_labels_is_dropped_and_reported_once(lost: list[str]) -> None:
    oversized_scorer = scorer("one")
    memory = SourceMemory(WindowBudget(10, 100), lambda: {"one": oversized_scorer})
    for now in (100, 110, 120):
        samples_by_series = samples(2, now) | {"long": ({"__name__": "m", "x": "y" * 5000}, now, 1.0)}
        assert History(oversized_scorer, memory, now).keep(samples_by_series) == 1
    assert (len(memory.get_window(oversized_scorer)), lost) == (2, ["one"])
    # Series that return are reported again.
    History(oversized_scorer, memory, 130).keep(samples(2, 130))
    History(oversized_scorer, memory, 140).keep(samples_by_series)
    assert lost == ["one", "one"]


@pytest.mark.parametrize(("interval", "step"), [(30, 60), (20, 60), (45, 60), (60, 60), (60, 15)])
def test_cycles_within_a_step_have_the_same_points(interval: int, step: int) -> None:
    range_scorer = scorer("one", source_range=600, source_step=step, scoring_interval=interval)
    memory = SourceMemory(WindowBudget(10, 1000), lambda: {"one": range_scorer})
    points: list[list[tuple[float, float]]] = []
    for cycle in range(60):
        now = 1007 + cycle * interval
        # Every second cycle starts late within its second.
        history = History(range_scorer, memory, now + 0.9 * (cycle % 2))
        history.keep({"a": ({"__name__": "m"}, now, float(cycle))})
        (series,) = history.series(lambda _: True, lambda: None)
        points.append(list(series.samples))
        newest = points[-1][-1][0]
        assert now - step < newest <= now
        assert (newest - 1007) % (step if step > interval else interval) == 0
    assert points[0] == [(1007, 0.0)], "the first cycle has its sample"
    # Cycles within one step have equal points once the range is full.
    newest_points = {values[-1][0]: values for values in points[40:]}
    assert all(values == newest_points[values[-1][0]] for values in points[40:])


def test_tenant_change_starts_a_new_window() -> None:
    memory = SourceMemory(WindowBudget(10, 100), lambda: {"a": scorer("a")})
    window = memory.get_window(scorer("a"))
    assert memory.get_window(scorer("a")) is window
    header = {"methods": {"headers": [{"name": "X-Scope-OrgID", "value": "team-b"}]}}
    assert memory.get_window(scorer("a", source_access=header)) is not window
