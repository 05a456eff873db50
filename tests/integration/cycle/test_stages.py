"""Fetch and score against real HTTP servers, and the observer's data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest

from dsf.api.authentication import CaKind
from dsf.api.summary import ScorerSummary
from dsf.auth.secrets import SecretError, Token, Use
from dsf.cycle.stages import Cycle, Observer, Stages
from dsf.errors import CycleError
from dsf.settings import Settings
from dsf.sources.base import RequestRecord
from tests.support.httpserver import (
    Exchange,
    Gate,
    Handler,
    ScriptedServer,
    answer,
    close_early,
    hang,
    matrix,
    send_endless,
    send_gzip_bomb,
    send_half,
    send_half_chunked,
    send_slowly,
)
from tests.support.wait import wait_for

SERIES = {"metric": {"node": "n1"}, "values": [[1, "1"]]}
GOOD = {"results": [{"metric": {"node": "n1"}, "score": 1.5}]}


class Recorder(Observer):
    """Records the calls."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, RequestRecord]] = []
        self.stages: list[str] = []

    def on_query(self, stage: str, question: RequestRecord) -> None:
        self.questions.append((stage, question))

    def on_timed(self, score_name: str, stage: str, seconds: float) -> None:
        assert (score_name, seconds > 0) == ("sample_score", True)
        self.stages.append(stage)


class NoSecrets:
    """A place without Secrets."""

    def get_secret(self, name: str, key: str, use: Use) -> bytes:
        raise SecretError(f"Secret {name!r} is missing")

    def get_certificates(self, kind: CaKind, name: str, key: str) -> bytes:
        raise SecretError(f"{kind} {name!r} is missing")

    def request_account_token(self, audience: str, seconds: int, deadline: float) -> Token:
        raise SecretError("there is no account")


@pytest.fixture
def servers() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    """A source with one series and a scoring API with one result."""
    with ScriptedServer(matrix(SERIES)) as source, ScriptedServer(answer(GOOD)) as scorer:
        yield source, scorer


def cycle_of(servers: tuple[ScriptedServer, ScriptedServer], **values: object) -> Cycle:
    source, scorer = servers
    summary_fields: dict[str, object] = {
        "name": "sample-scorer",
        "score_name": "sample_score",
        "source_type": "Prometheus",
        "source_endpoint": f"{source.url}/api/v1/query_range",
        "source_query": "up; down",
        "source_range": 60,
        "source_step": 15,
        "scoring_endpoint": f"{scorer.url}/scoring",
        "timeout_seconds": 60,
    }
    return Cycle("sample-scorer", "run", ScorerSummary.model_validate(summary_fields | values), math.inf)


def test_observer_receives_each_request_and_stage(servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    recorder = Recorder()
    stages = Stages(Settings(), NoSecrets(), observer=recorder)
    cycle = cycle_of(servers)
    request = b"".join(stages.fetch(cycle).pieces)
    stages.score(cycle, request)
    assert [(stage, question.query, question.series) for stage, question in recorder.questions] == [
        ("fetch", "up", 1),
        ("fetch", "down", 1),
        ("score", "", 0),
    ]
    assert b"1.5" in bytes(recorder.questions[2][1].pieces[0])
    assert recorder.stages == ["fetch", "score"] == list(cycle.timings)
    assert cycle.response is not None
    assert cycle.counts == {"series": 2, "bytes_in": cycle.counts["bytes_in"], "bytes_out": len(request), "results": 1}


def test_refused_query_is_observed_with_its_error(servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    servers[0].script(answer({"status": "error", "error": "no such function"}, 400))
    recorder = Recorder()
    with pytest.raises(CycleError, match="no such function") as caught:
        Stages(Settings(), NoSecrets(), observer=recorder).fetch(cycle_of(servers))
    ((stage, question),) = recorder.questions
    assert (caught.value.stage, caught.value.reason) == (stage, "bad_query")
    assert question.error is not None
    assert question.error.status == 400
    assert recorder.stages == ["fetch"]


def test_missing_token_sends_no_request(servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    recorder = Recorder()
    cycle = cycle_of(servers, source_endpoint_auth_name="secret", source_endpoint_auth_key="token")
    with pytest.raises(CycleError) as caught:
        Stages(Settings(), NoSecrets(), observer=recorder).fetch(cycle)
    assert caught.value.reason == "secret_missing"
    assert (recorder.questions, servers[0].requests) == ([], [])


REFUSED = answer({"status": "error", "errorType": "bad_data", "error": "1:4: parse error"}, 400)
VECTOR = answer({"status": "success", "data": {"resultType": "vector", "result": []}})


@pytest.mark.parametrize(
    ("stage", "handler", "reason", "text"),
    [
        ("fetch", REFUSED, "bad_query", "1:4: parse error"),
        ("fetch", answer({"status": "error", "error": "too many samples"}, 422), "bad_query", "too many samples"),
        ("fetch", answer({"status": "error", "error": "disk is full"}), "bad_answer", "disk is full"),
        ("fetch", answer("starting", 503), "http_error", "HTTP 503: starting"),
        ("fetch", answer("<html>not here</html>"), "bad_answer", "not JSON"),
        ("fetch", VECTOR, "bad_answer", "'vector' and not a matrix"),
        ("fetch", send_half, "truncated", "ends too early"),
        ("fetch", send_half_chunked, "truncated", "ends too early"),
        ("fetch", answer("", 302, Location="http://127.0.0.1:1/"), "redirect", "give the final URL"),
        ("fetch", send_endless(1 << 30), "too_large", "1073741824 bytes"),
        ("fetch", answer("log in", 401), "unauthorized", "HTTP 401: log in"),
        ("score", answer("boom", 500), "http_error", "HTTP 500: boom"),
        ("score", answer("slow down", 429, Retry_After="30"), "http_error", "HTTP 429: slow down"),
        ("score", answer("<html>hello</html>"), "bad_answer", "<html>hello</html>"),
        ("score", answer({"results": {}}), "bad_answer", 'not {"results": [...]}'),
        ("score", answer("", 307, Location="http://127.0.0.1:1/"), "redirect", "redirects are not followed"),
        ("score", answer("no", 401), "unauthorized", "HTTP 401: no"),
        ("score", send_half, "truncated", "ends too early"),
        ("score", close_early, "connection_failed", "closed the connection"),
        ("score", send_endless(), "too_large", "8388608 bytes"),
        ("score", send_gzip_bomb, "too_large", "8388608 bytes"),
        ("score", hang, "timeout", "no complete response within"),
        ("score", send_slowly, "timeout", "no complete response within"),
    ],
)
def test_invalid_response_fails_with_a_reason_and_advice(
    servers: tuple[ScriptedServer, ScriptedServer], stage: str, handler: Handler, reason: str, text: str
) -> None:
    server, method = (servers[0], "GET") if stage == "fetch" else (servers[1], "POST")
    server.script(handler)
    # A second is short on a busy machine; longer if it was over before the request.
    for seconds in (1, 4, 12) if reason == "timeout" else (60,):
        stages, cycle = Stages(Settings(), NoSecrets()), cycle_of(servers, timeout_seconds=seconds)
        with pytest.raises(CycleError) as caught:
            stages.fetch(cycle) if stage == "fetch" else stages.score(cycle, b'{"data":[]}')
        if server.requests:
            break
    assert (caught.value.stage, caught.value.reason) == (stage, reason)
    assert caught.value.message.startswith(f"{method} {server.url}/")
    assert text in caught.value.message


def several(servers: tuple[ScriptedServer, ScriptedServer], other: str, **values: object) -> Cycle:
    """Return a cycle of the sources `load` and `power`; `power` is at the URL `other`."""
    power = {"name": "power", "type": "Prometheus", "endpoint": f"{other}/api/v1/query_range", "query": "watts"}
    return cycle_of(
        servers, source_query="up", source_name="load", sources=[power | {"range": 60, "step": 15}], **values
    )


def test_several_sources_are_queried_concurrently_and_sent_by_name(
    servers: tuple[ScriptedServer, ScriptedServer],
) -> None:
    watts = {"metric": {"node": "n2"}, "values": [[1, "2"]]}
    first = Gate(matrix(SERIES))
    servers[0].script(first)

    def second(exchange: Exchange) -> None:
        # The first is under way and gets its response only now.
        assert first.entered.wait(60)
        first.opened.set()
        matrix(watts)(exchange)

    with ScriptedServer(second) as other:
        cycle = several(servers, other.url, timeout_seconds=60)
        payload = Stages(Settings(), NoSecrets()).fetch(cycle)
    body = json.loads(b"".join(payload.pieces))
    assert body == {"data": [SERIES], "sources": {"load": [SERIES], "power": [watts]}}
    assert (cycle.counts["series"], payload.size) == (2, len(b"".join(payload.pieces)))


def test_connections_to_several_sources_are_reused(servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    stages, cycles = Stages(Settings(), NoSecrets()), 40
    with ScriptedServer(matrix(SERIES)) as other:
        for _ in range(cycles):
            assert stages.fetch(several(servers, other.url, timeout_seconds=60)).series == 2
        # A few threads send requests in turns, each on its own connections.
        for server in (servers[0], other):
            assert len(server.requests) == cycles
            assert server.connections <= cycles // 2


def test_failing_source_is_named_and_other_sources_are_read_to_the_end(
    servers: tuple[ScriptedServer, ScriptedServer],
) -> None:
    with ScriptedServer(answer({"error": "no such function"}, 400)) as other, pytest.raises(CycleError) as caught:
        Stages(Settings(), NoSecrets()).fetch(several(servers, other.url))
    error = caught.value
    assert (error.stage, error.reason, error.retryable) == ("fetch", "bad_query", False)
    assert error.message.startswith("source 'power': GET http://127.0.0.1:")
    assert "no such function" in error.message
    assert len(servers[0].requests) == 1


def test_all_failing_sources_are_named_and_a_retry_must_help_each(
    servers: tuple[ScriptedServer, ScriptedServer],
) -> None:
    servers[0].script(answer("away", 503, Retry_After="7"))
    with ScriptedServer(answer("busy", 429, Retry_After="9"), answer({"error": "bad"}, 400)) as other:
        with pytest.raises(CycleError) as caught:
            Stages(Settings(), NoSecrets()).fetch(several(servers, other.url))
        assert (caught.value.retryable, caught.value.retry_after) == (True, 9)
        assert "source 'load': " in caught.value.message
        assert "; source 'power': " in caught.value.message
        with pytest.raises(CycleError) as caught:
            Stages(Settings(), NoSecrets()).fetch(several(servers, other.url))
        assert not caught.value.retryable


@pytest.mark.parametrize("stage", ["fetch", "score"])
def test_retry_after_applies_to_later_cycles(servers: tuple[ScriptedServer, ScriptedServer], stage: str) -> None:
    stages = Stages(Settings(), NoSecrets())
    server = servers[stage == "score"]

    def cycle(scorer: str = "sample-scorer", **values: object) -> CycleError | None:
        run = cycle_of(servers, source_query="up", **values)
        run.scorer = scorer
        try:
            stages.fetch(run) if stage == "fetch" else stages.score(run, b"{}")
        except CycleError as error:
            return error
        return None

    server.script(answer("slow down", 429, Retry_After="300"), matrix(SERIES) if stage == "fetch" else answer(GOOD))
    first = cycle()
    assert first is not None
    for failed_cycle in (cycle(), cycle()):
        assert failed_cycle is not None
        assert (failed_cycle.stage, failed_cycle.reason, failed_cycle.retryable) == (stage, "http_error", True)
        assert failed_cycle.message == f"waiting 300 s, as its Retry-After says: {first.message}"
        assert 200 < (failed_cycle.retry_after or 0) <= 300
    assert len(server.requests) == 1
    # Other scorers, and the same one with another server, are requested as before.
    assert cycle("another") is None
    field = "source_endpoint" if stage == "fetch" else "scoring_endpoint"
    assert cycle(**{field: f"{server.url}/other"}) is None
    assert len(server.requests) == 3


def test_retry_after_expires(servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    stages = Stages(Settings(), NoSecrets())
    servers[1].script(answer("slow down", 429, Retry_After="1"), answer(GOOD))

    def is_scored() -> bool:
        try:
            stages.score(cycle_of(servers), b"{}")
        except CycleError:
            return False
        return True

    assert not is_scored()
    assert wait_for(is_scored, 30)
    assert len(servers[1].requests) == 2


def test_hanging_source_ends_at_the_shared_deadline(servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    # Longer if the other one had not responded by then, because the machine may be busy.
    for seconds in (1, 10):
        with ScriptedServer(hang) as other, pytest.raises(CycleError) as caught:
            Stages(Settings(), NoSecrets()).fetch(several(servers, other.url, timeout_seconds=seconds))
        if "source 'load': " not in caught.value.message:
            break
    assert (caught.value.reason, caught.value.message[:16]) == ("timeout", "source 'power': ")


def test_unknown_source_type_fails_with_the_name_of_the_source(servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    cycle = cycle_of(servers, source_name="load", sources=[{"name": "power", "type": "Magic"}])
    with pytest.raises(CycleError, match="source 'power': source type 'Magic' is not one of") as caught:
        Stages(Settings(), NoSecrets()).fetch(cycle)
    assert caught.value.reason == "unsupported_source"


def test_sources_share_the_byte_limit(servers: tuple[ScriptedServer, ScriptedServer]) -> None:
    with ScriptedServer(matrix(SERIES, SERIES, SERIES)) as other, pytest.raises(CycleError) as caught:
        Stages(Settings(max_source_bytes=450), NoSecrets()).fetch(several(servers, other.url))
    assert (caught.value.reason, caught.value.message[:16]) == ("too_large", "source 'power': ")
