"""What an agent keeps between cycles is shared by its scorers, and none of them takes all of it."""

from __future__ import annotations

import contextlib
import math

import pytest

from dsf import http
from dsf.api.summary import ScorerSummary
from dsf.errors import HttpError
from dsf.sources import opentelemetry
from dsf.sources.base import Context
from dsf.sources.held import Held
from dsf.sources.window import Budget


@pytest.mark.parametrize("taken", [10, 11, 30])
def test_a_scorer_with_all_the_series_there_may_be_gives_way(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    series = {"greedy": taken, "modest": 2}
    scorers = {
        name: ScorerSummary(
            name=name,
            score_name=name,
            source_type="OpenTelemetry",
            source_endpoint=f"http://{name}",
            source_query="m",
            source_range=60,
            source_step=10,
            scoring_interval=10,
        )
        for name in series
    }
    held = Held(Budget(10, 1000), lambda: scorers)

    def get(url: str, **_: object) -> bytes:
        return "".join(f'm{{x="{n}"}} 1\n' for n in range(series[url.removeprefix("http://")])).encode()

    monkeypatch.setattr(http, "get", get)

    lost: list[str] = []
    monkeypatch.setattr("dsf.sources.held.log.warning", lambda _, scorer, **__: lost.append(scorer))

    def fetched(name: str) -> int:
        return opentelemetry.fetch(scorers[name], Context(math.inf, 100_000, 2e9, held=held)).series

    for _ in range(3):
        for _ in range(2):
            # Whether it fits is not of interest here.
            with contextlib.suppress(HttpError):
                fetched("greedy")
        assert fetched("modest") == 2
    # Whoever lost its past is told of, for its scores are of less than it asked for.
    assert lost == ["greedy"] * len(lost)
    assert lost
