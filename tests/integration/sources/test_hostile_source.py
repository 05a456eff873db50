"""A whole agent with one malicious source: other scorers lose nothing, and its memory is released."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from dsf.messages import Result
from tests.integration.agent.harness import Agent, summary
from tests.support.httpserver import ScriptedServer, answer
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

#: Bytes of an exposition, like those that once blocked an agent's other scorers.
SIZE = 4_700_000
#: Cycles of the honest scorer beside it, seconds between two, and within how many each must end.
CYCLES, PAUSE, LIMIT = 5, 0.5, 20.0
#: Megabytes that an agent may take while it reads such a response, and keep once the scorer is removed.
WHILE, AFTER = 250, 60


def _lines(line: bytes) -> bytes:
    return line * (SIZE // len(line))


#: Functions, because all test processes load this module and one runs its tests.
EXPOSITIONS: dict[str, Callable[[], bytes]] = {
    "one line of quotes": lambda: b'm{a="' + b'\\"' * (SIZE // 2) + b'"} 1\n',
    "one line of labels": lambda: b"m{" + b'a="b",' * (SIZE // 6) + b"} 1\n",
    "many labels a line": lambda: _lines(b"m{" + b",".join(b'l%d="x"' % n for n in range(128)) + b"} 1\n"),
    "labels that never end": lambda: _lines(b'm{a="\\\\\\\\\\\\\\\\\\\\\n'),
    "a series a line": lambda: b"".join(b'm{a="%d"} 1\n' % n for n in range(SIZE // 16)),
    "numbers that are none": lambda: _lines(b"m " + b"1" * 4000 + b"e" + b"9" * 4000 + b"\n"),
}


@pytest.fixture
def honest() -> Iterator[ScriptedServer]:
    with ScriptedServer(answer({"results": [{"metric": {"pod": "a"}, "score": 1}]})) as server:
        yield server


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Iterator[Agent]:
    """All tests share one agent without scorers."""
    started = Agent(tmp_path_factory.mktemp("agent"), redis_server.url)
    started.configure()
    with started:
        yield started


@pytest.mark.parametrize("name", EXPOSITIONS)
def test_hostile_exposition_does_not_affect_a_second_scorer(name: str, agent: Agent, honest: ScriptedServer) -> None:
    other = summary("other", "", honest.url, sourceType="None")
    with ScriptedServer(answer(EXPOSITIONS[name](), Content_Type="text/plain")) as source:
        hostile = summary(
            "hostile",
            f"{source.url}/metrics",
            honest.url,
            sourceType="OpenTelemetry",
            sourceQuery='m{a=~"(x|y)*z"}',
            sourceRange=20,
            sourceStep=10,
        )
        agent.begin(hostile, other)
        wait_for(lambda: agent.metrics("dynamic_scoring_config_scorers 2"), 10, "both scorers are known")
        assert agent.process is not None
        process = psutil.Process(agent.process.pid)
        before = process.memory_info().rss
        highest = before
        results: dict[str, list[Result]] = {"hostile": [], "other": []}
        for number in range(1, CYCLES + 1):
            agent.tick("hostile", expires=LIMIT)
            agent.tick("other", expires=LIMIT)
            time.sleep(PAUSE)  # a rate, not a wait for something
            highest = max(highest, process.memory_info().rss)
            # On a busy machine the next tick would arrive during this cycle, and be skipped for that.
            while len(results["other"]) < number:
                result = agent.result(LIMIT)
                results[result.scorer].append(result)
                highest = max(highest, process.memory_info().rss)
        assert {result.outcome for result in results["other"]} == {"ok"}
        while not results["hostile"]:
            result = agent.result(LIMIT)
            results[result.scorer].append(result)
        assert (highest - before) / 2**20 < WHILE, f"{(highest - before) / 2**20:.0f} MB"
        agent.configure(other)
        wait_for(lambda: agent.metrics("dynamic_scoring_config_scorers 1"), 10, "the hostile one is gone")
        wait_for(
            lambda: (process.memory_info().rss - before) / 2**20 < AFTER, 20, "its memory is given back", interval=0.5
        )
