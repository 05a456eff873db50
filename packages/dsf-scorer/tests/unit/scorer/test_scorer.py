"""The /config document of a scorer, and errors in its definition."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dsf.api.remoteconfig import parse_remote_config
from dsf.api.resolve import resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.types import SourceType
from dsf.scorer import Bearer, Limits, Prometheus, Score, Scorer, ScorerApp, ScorerError, Source

SOURCE = Prometheus(query="up", range=600, step=60, host="http://prometheus:9090")


def scorer(**values: Any) -> Scorer:
    fields: dict[str, Any] = {"name": "cpu", "description": "CPU", "score_name": "cpu_score", "interval": 30}
    return Scorer(**(fields | values))


def test_config() -> None:
    assert scorer(source=SOURCE).config() == {
        "name": "cpu",
        "description": "CPU",
        "source": {
            "type": "Prometheus",
            "host": "http://prometheus:9090",
            "params": {"query": "up", "range": 600, "step": 60},
        },
        "scoring": {"path": "/scoring", "params": {"name": "cpu_score", "interval": 30}},
    }


def test_config_without_a_source() -> None:
    assert scorer(path="a/").config("/root")["source"] == {"type": "None"}
    assert scorer(path="a/").config("/root")["scoring"]["path"] == "/root/a/scoring"
    assert scorer(scoring_host="http://x:1").config()["scoring"]["host"] == "http://x:1"


def test_framework_resolves_the_config_of_a_scorer() -> None:
    import json

    synced = parse_remote_config(json.dumps(scorer(source=SOURCE).config()).encode())
    resolved = resolve(
        DynamicScorer.model_validate(
            {
                "metadata": {"name": "cpu"},
                "spec": {"description": "", "configURL": "http://scorer:8000/config", "configSyncMode": "Full"},
                "status": {"lastSyncedConfig": synced},
            }
        )
    )
    summary = resolved.summary
    assert (summary.score_name, summary.scoring_interval) == ("cpu_score", 30)
    assert summary.scoring_endpoint == "http://scorer:8000/scoring"
    assert (summary.source_type, summary.source_endpoint) == ("Prometheus", "http://prometheus:9090/api/v1/query_range")


@pytest.mark.parametrize("kind", list(SourceType))
def test_other_sources_need_no_class(kind: SourceType) -> None:
    assert scorer(source=Source(type=kind.value, query="q")).config()["source"] == {
        "type": kind,
        "params": {"query": "q"},
    }


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "X_SOURCE_HOST": "https://other",
        "X_SOURCE_PATH": "/q",
        "X_SOURCE_QUERY": "down",
        "X_SOURCE_RANGE": "7",
        "X_SOURCE_STEP": " 3 ",
        "X_SCORE_NAME": "n",
        "X_SCORE_INTERVAL": "9",
        "SOURCE_QUERY": "not this one",
    }.items():
        monkeypatch.setenv(name, value)
    config = scorer(source=SOURCE, env="X_").config()
    assert config["source"] == {
        "type": "Prometheus",
        "host": "https://other",
        "path": "/q",
        "params": {"query": "down", "range": 7, "step": 3},
    }
    assert config["scoring"]["params"] == {"name": "n", "interval": 9}
    assert scorer(source=SOURCE).config()["source"]["params"]["query"] == "up"
    assert scorer(source=SOURCE, env="").config()["source"]["params"]["query"] == "not this one"
    assert scorer(env="X_").config()["source"] == {"type": "None"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scorer(name=" "), "name"),
        (lambda: scorer(score_name="a\nb"), "score_name"),
        (lambda: scorer(interval=0), "interval"),
        (lambda: scorer(interval=1.5), "interval"),
        (lambda: scorer(interval=True), "interval"),
        (lambda: scorer(path="/a b"), "path"),
        (lambda: scorer(path="/a/../b"), "path"),
        (lambda: scorer(scoring_host="x:1"), "scoring_host"),
        (lambda: Prometheus(query=" ; ", range=1, step=1), "query"),
        (lambda: Prometheus(query="up", range=0, step=1), "range"),
        (lambda: Prometheus(query="up", range=1, step=0), "step"),
        (lambda: Prometheus(query="up", range=1, step=1, host="prometheus:9090"), "host"),
        (lambda: Prometheus(query="up", range=1, step=1, host="http://[x"), "host"),
        (lambda: Bearer(), "either"),
        (lambda: Bearer(env="A", file="b"), "either"),
        (lambda: Limits(bytes=0), "bytes"),
        (lambda: Limits(concurrency=-1), "concurrency"),
        (ScorerApp, "at least one"),
        (lambda: ScorerApp(scorer(), scorer(name="b", score_name="c")), "path ''"),
        (lambda: ScorerApp(scorer(), scorer(path="b", score_name="c")), "name 'cpu'"),
        (lambda: ScorerApp(scorer(), scorer(path="b", name="c")), "score_name 'cpu_score'"),
        (lambda: ScorerApp(scorer(), prefix="/a?b"), "prefix"),
        (lambda: scorer().app.api, "no scoring function"),
    ],
)
def test_mistakes(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ScorerError, match=message):
        make()


def test_score_decorator_returns_the_function_and_accepts_only_one() -> None:
    mean_scorer = scorer()

    @mean_scorer.score
    def function(_: object) -> list[Score]:
        return []

    assert function([]) == []
    with pytest.raises(ScorerError, match="already"):
        mean_scorer.score(function)


def test_async_generator_is_refused_as_scoring_function() -> None:
    async def function(_: object) -> AsyncIterator[Score]:
        yield Score(1)

    with pytest.raises(ScorerError, match="return its scores"):
        scorer().score(function)  # type: ignore[type-var]
