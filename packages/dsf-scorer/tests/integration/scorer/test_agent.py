"""The agent's own functions with a service of the library, over HTTP: source, scoring request, result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsf import http
from dsf.agent.secrets import FileSecrets, Release
from dsf.api.remoteconfig import parse_remote_config
from dsf.api.resolve import resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringresponse import ScoringResponse
from dsf.api.summary import ScorerSummary
from dsf.cycle.stages import Cycle, Stages
from dsf.errors import CycleError, HttpError
from dsf.scorer import Bearer, Limits, Prometheus, Score, Scorer, Series, Unavailable
from dsf.settings import Settings
from tests.support.httpserver import ScriptedServer, matrix
from tests.support.scoringservices import served


def series(pod: str, *values: str) -> dict[str, Any]:
    return {"metric": {"pod": pod}, "values": [[1718600000 + 60 * at, value] for at, value in enumerate(values)]}


def scorer(prometheus: str, **values: Any) -> Scorer:
    source = Prometheus(query="a; b", range=600, step=60, host=prometheus)
    new_scorer = Scorer(name="mean", description="d", score_name="mean", interval=30, source=source, **values)

    @new_scorer.score
    def mean(series: list[Series]) -> Iterable[Score]:
        for item in series:
            yield item.score(np.mean(item.values), meta="m")

    return new_scorer


def summary_of(url: str, *, token: bool = False) -> ScorerSummary:
    """Return the summary that the hub would make from /config."""
    synced = parse_remote_config(http.get(f"{url}/config", deadline=time.monotonic() + 60, max_bytes=10_000))
    spec: dict[str, Any] = {"description": "", "configURL": f"{url}/config", "configSyncMode": "Full"}
    if token:
        spec["scoring"] = {"auth": {"tokenSecretRef": {"name": "mine", "key": "token"}}}
    manifest = {"metadata": {"name": "mean"}, "spec": spec, "status": {"lastSyncedConfig": synced}}
    return resolve(DynamicScorer.model_validate(manifest)).summary


@pytest.fixture
def cycle(tmp_path: Path, settings_factory: Callable[..., Settings]) -> Callable[[ScorerSummary], ScoringResponse]:
    """Runs fetch and score, as the tasks do; returns the scoring API's response."""
    settings = settings_factory(
        cluster="worker01", agent_secrets_dir=tmp_path / "secrets", agent_token_secrets={"mine": ["127.0.0.1"]}
    )
    stages = Stages(settings, FileSecrets(settings.agent_secrets_dir, Release(settings)))

    def run(summary: ScorerSummary) -> ScoringResponse:
        cycle = Cycle(summary.name, "run", summary, math.inf)
        stages.score(cycle, b"".join(stages.fetch(cycle).pieces))
        assert cycle.response is not None
        return cycle.response

    return run


def test_cycle_queries_each_source_and_returns_scores(cycle: Callable[[ScorerSummary], ScoringResponse]) -> None:
    responses = (matrix(series("x", "1", "3"), series("spoilt", "NaN", "1")), matrix(series("y", "-1")))
    with ScriptedServer(*responses) as prometheus, served(scorer(prometheus.url)) as url:
        result = cycle(summary_of(url))
    assert [request.query["query"] for request in prometheus.requests] == ["a", "b"]
    assert result.refusal_counts == {}
    assert list(result.results) == [({"pod": "x", "meta": "m"}, 2.0), ({"pod": "y", "meta": "m"}, -1.0)]


def test_scorer_without_series_returns_no_results(cycle: Callable[[ScorerSummary], ScoringResponse]) -> None:
    with ScriptedServer(matrix()) as prometheus, served(scorer(prometheus.url)) as url:
        assert not cycle(summary_of(url)).results


def test_token_is_required_by_a_guarded_scorer(
    cycle: Callable[[ScorerSummary], ScoringResponse], tmp_path: Path
) -> None:
    secret = tmp_path / "secrets" / "mine" / "token"
    secret.parent.mkdir(parents=True)
    secret.write_text("right")
    token_file = tmp_path / "known"
    token_file.write_text("right")
    with (
        ScriptedServer(matrix(series("x", "1"))) as prometheus,
        served(scorer(prometheus.url, token=Bearer(file=token_file))) as url,
    ):
        assert cycle(summary_of(url, token=True)).results
        with pytest.raises(CycleError) as caught:
            cycle(summary_of(url))
    assert (caught.value.stage, caught.value.reason, caught.value.retryable) == ("score", "unauthorized", False)


def test_unavailable_error_is_retryable(cycle: Callable[[ScorerSummary], ScoringResponse]) -> None:
    unavailable_scorer = Scorer(name="away", description="d", score_name="away", interval=30)

    @unavailable_scorer.score
    def away(_: list[Series]) -> list[Score]:
        raise Unavailable("the model does not answer", retry_after=3)

    with served(unavailable_scorer) as url, pytest.raises(CycleError) as caught:
        cycle(summary_of(url))
    assert (caught.value.reason, caught.value.retryable, caught.value.retry_after) == ("http_error", True, 3.0)
    assert "the model does not answer" in caught.value.message


@pytest.mark.parametrize("size", [1_000_001, 20_000_000])
def test_oversized_request_error_reaches_the_agent(size: int) -> None:
    small_scorer = Scorer(
        name="small", description="d", score_name="small", interval=30, limits=Limits(bytes=1_000_000)
    )
    small_scorer.score(lambda _: [])
    with served(small_scorer) as url, pytest.raises(HttpError) as caught:
        http.post(f"{url}/scoring", b" " * size, deadline=time.monotonic() + 20, max_bytes=1000)
    assert caught.value.status == 413
    assert "more than 1000000 bytes" in str(caught.value)


def test_refusal_reaches_the_agent_while_it_sends_a_large_body(tmp_path: Path) -> None:
    token_file = tmp_path / "known"
    token_file.write_text("right")
    guarded_scorer = Scorer(
        name="closed", description="d", score_name="closed", interval=30, token=Bearer(file=token_file)
    )
    guarded_scorer.score(lambda _: [])
    with served(guarded_scorer) as url, pytest.raises(HttpError) as caught:
        http.post(f"{url}/scoring", b" " * 20_000_000, deadline=time.monotonic() + 20, max_bytes=1000)
    assert caught.value.reason == "unauthorized"
