"""Whatever a source or a scoring API does ends in a reason that a person can act on, in bounded time and memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.integration.agent.conftest import RESULTS, SERIES
from tests.integration.agent.harness import Agent, summary
from tests.support import httpserver
from tests.support.httpserver import Handler, ScriptedServer, answer, matrix
from tests.support.redisserver import RedisServer


@pytest.mark.parametrize(
    ("where", "handler", "reason", "text"),
    [
        ("source", answer({"status": "error", "errorType": "bad_data", "error": "1:4: parse error"}, 400), "bad_query",
         "1:4: parse error"),
        ("source", answer({"status": "error", "error": "query timed out"}, 422), "bad_query", "query timed out"),
        ("source", answer("<html>not here</html>"), "bad_answer", "not JSON"),
        ("source", answer({"status": "success", "data": {"resultType": "vector", "result": []}}), "bad_answer",
         "'vector' and not a matrix"),
        ("source", httpserver.half, "truncated", "ends too early"),
        ("source", answer("", 302, Location="http://127.0.0.1:1/"), "redirect", "give the final URL"),
        ("source", httpserver.endless(1 << 30), "too_large", "1073741824 bytes"),
        ("scorer", answer("boom", 500), "http_error", "HTTP 500: boom"),
        ("scorer", answer("<html>hello</html>"), "bad_answer", "<html>hello</html>"),
        ("scorer", answer("", 307, Location="http://127.0.0.1:1/"), "redirect", "give the final URL"),
        ("scorer", answer("no", 401), "unauthorized", "HTTP 401: no"),
        ("scorer", httpserver.endless(None), "too_large", "8388608 bytes"),
        ("scorer", httpserver.bomb, "too_large", "8388608 bytes"),
        ("scorer", httpserver.hang, "timeout", "no complete answer within"),
        ("scorer", httpserver.drip, "timeout", "no complete answer within"),
        ("scorer", answer({"results": {}}), "bad_answer", "is not"),
    ],
)  # fmt: skip
def test_every_fault_has_a_reason_and_the_next_good_cycle_clears_it(
    shared: tuple[Agent, ScriptedServer, ScriptedServer], where: str, handler: Handler, reason: str, text: str
) -> None:
    agent, source, scorer = shared
    server = source if where == "source" else scorer
    good = matrix(SERIES) if where == "source" else answer(RESULTS)
    server.script(handler)
    # A second is short on a busy machine: only for those that let it pass, and more where they were not asked in it.
    for seconds in (1, 4, 12) if reason == "timeout" else (25,):
        before = len(server.requests)
        configure(agent, source, scorer, seconds)
        agent.tick("sample")
        result = agent.result()
        if len(server.requests) > before:
            break
    assert (result.outcome, result.stage) == ("error", "fetch" if where == "source" else "score")
    assert result.reason == reason
    assert text in result.message
    if reason == "timeout":
        # Less where some of it had passed before the question.
        (said,) = re.findall(r" within ([\d.]+) s", result.message)
        assert 0 < float(said) < seconds + 8
    server.script(good)
    configure(agent, source, scorer, 25)
    agent.tick("sample")
    assert agent.result().outcome == "ok"
    assert agent.spooled() == []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Agent, ScriptedServer, ScriptedServer]]:
    """One agent for many faults, without retries."""
    with (
        RedisServer() as server,
        ScriptedServer(matrix(SERIES)) as source,
        ScriptedServer(answer(RESULTS)) as scorer,
    ):
        agent = Agent(tmp_path_factory.mktemp("agent"), server.url)
        configure(agent, source, scorer, 25)
        with agent:
            yield agent, source, scorer


def configure(agent: Agent, source: ScriptedServer, scorer: ScriptedServer, seconds: int) -> None:
    """Deliver the one scorer with this time-out."""
    agent.configure(summary("sample", source.url, scorer.url, timeoutSeconds=seconds, maxRetries=0))
