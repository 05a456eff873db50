"""Fetch and score against real HTTP servers, and what an observer is told."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from dsf.api.authentication import CaKind
from dsf.api.summary import ScorerSummary
from dsf.auth.secrets import AccountToken, SecretError, Use
from dsf.cycle.cycle import Cycle
from dsf.cycle.stages import Observer, Stages
from dsf.errors import CycleError
from dsf.settings import Settings
from dsf.sources.base import Question
from tests.support.httpserver import ScriptedServer, answer, matrix

SERIES = {"metric": {"node": "n1"}, "values": [[1, "1"]]}
GOOD = {"results": [{"metric": {"node": "n1"}, "score": 1.5}]}


class Recorder(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, Question]] = []
        self.stages: list[str] = []

    def asked(self, stage: str, question: Question) -> None:
        self.questions.append((stage, question))

    def timed(self, score_name: str, stage: str, seconds: float) -> None:
        assert (score_name, seconds > 0) == ("sample_score", True)
        self.stages.append(stage)


class NoSecrets:
    """A place without Secrets."""

    def secret(self, name: str, key: str, use: Use) -> bytes:
        raise SecretError(f"Secret {name!r} is missing")

    def certificates(self, kind: CaKind, name: str, key: str) -> bytes:
        raise SecretError(f"{kind} {name!r} is missing")

    def account_token(self, audience: str, seconds: int) -> AccountToken:
        raise SecretError("there is no account")


@pytest.fixture
def servers() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    """A source with one series and a scoring API with one result."""
    with ScriptedServer(matrix(SERIES)) as source, ScriptedServer(answer(GOOD)) as scorer:
        yield source, scorer


def cycle_of(servers: tuple[ScriptedServer, ScriptedServer], **values: object) -> Cycle:
    source, scorer = servers
    known: dict[str, object] = {
        "name": "sample-scorer",
        "score_name": "sample_score",
        "source_type": "Prometheus",
        "source_endpoint": f"{source.url}/api/v1/query_range",
        "source_query": "up; down",
        "source_range": 60,
        "source_step": 15,
        "scoring_endpoint": f"{scorer.url}/scoring",
        "timeout_seconds": 5,
    }
    return Cycle("sample-scorer", "run", ScorerSummary.model_validate(known | values), math.inf)


def test_an_observer_is_told_of_each_question_and_each_stage(servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    seen = Recorder()
    stages = Stages(Settings(), NoSecrets(), observer=seen)
    cycle = cycle_of(servers)
    request = b"".join(stages.fetch(cycle).pieces)
    stages.score(cycle, request)
    assert [(stage, question.query, question.series) for stage, question in seen.questions] == [
        ("fetch", "up", 1),
        ("fetch", "down", 1),
        ("score", "", 0),
    ]
    assert b"1.5" in bytes(seen.questions[2][1].pieces[0])
    assert seen.stages == ["fetch", "score"] == list(cycle.timings)
    assert cycle.response is not None
    assert cycle.counts == {"series": 2, "bytes_in": cycle.counts["bytes_in"], "bytes_out": len(request), "results": 1}


def test_a_refused_question_is_told_with_its_error(servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    servers[0].script(answer({"status": "error", "error": "no such function"}, 400))
    seen = Recorder()
    with pytest.raises(CycleError, match="no such function") as caught:
        Stages(Settings(), NoSecrets(), observer=seen).fetch(cycle_of(servers))
    ((stage, question),) = seen.questions
    assert (caught.value.stage, caught.value.reason) == (stage, "bad_query")
    assert question.error is not None
    assert question.error.status == 400
    assert seen.stages == ["fetch"]


def test_without_its_token_nothing_is_asked(servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    seen = Recorder()
    cycle = cycle_of(servers, source_endpoint_auth_name="secret", source_endpoint_auth_key="token")
    with pytest.raises(CycleError) as caught:
        Stages(Settings(), NoSecrets(), observer=seen).fetch(cycle)
    assert caught.value.reason == "secret_missing"
    assert (seen.questions, servers[0].requests) == ([], [])
