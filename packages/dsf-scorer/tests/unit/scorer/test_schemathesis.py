"""Valid and invalid requests generated from the OpenAPI document: no response is a 500, invalid ones are refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from dsf.scorer import Bearer, Prometheus, Score, Scorer, ScorerApp, Series

mean = Scorer(
    name="mean",
    description="d",
    score_name="mean",
    interval=30,
    source=Prometheus(query="up", range=60, step=5),
)
table = Scorer(name="table", description="d", score_name="table", interval=30, path="/table")


@mean.score
def score(series: list[Series]) -> Iterable[Score]:
    with np.errstate(all="ignore"):
        for entry in series:
            if not entry.is_empty:
                yield entry.score(entry.values.sum())


@table.score
async def rows(_: list[Series]) -> list[Score]:
    return [Score(1, {"device": "a"})]


# The plug-in is loaded only here; pyproject.toml disables it for other tests.
pytest_plugins = ["schemathesis.pytest.plugin"]
schema = schemathesis.openapi.from_asgi("/openapi.json", ScorerApp(mean, table))
guarded = Scorer(name="guarded", description="d", score_name="guarded", interval=30, token=Bearer(env="GUARDED_TOKEN"))
guarded.score(lambda _: [Score(1)])
# The service does not start without its token.
with pytest.MonkeyPatch.context() as started:
    started.setenv("GUARDED_TOKEN", "right")
    closed = schemathesis.openapi.from_asgi("/openapi.json", ScorerApp(guarded))


@schema.parametrize()
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_every_operation(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate()


@closed.include(path="/scoring").parametrize()
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
def test_token_is_required_as_documented(case: schemathesis.Case[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUARDED_TOKEN", "right")
    case.call_and_validate(headers={"Authorization": "Bearer right"})
