"""An agent's reaction to sources, scoring APIs, messages and a Redis that misbehave."""

from __future__ import annotations

import time

import pytest
import redis

from tests.integration.agent.conftest import RESULTS, SERIES, AgentFactory
from tests.integration.agent.harness import Agent, summary
from tests.support import httpserver
from tests.support.httpserver import Gate, ScriptedServer, answer, matrix
from tests.support.wait import PATIENCE, wait_for

CANARY = "canary-token-93b1c7"


def test_cycle_ends_before_the_next_tick(agent: Agent, source: ScriptedServer) -> None:
    source.script(httpserver.hang)
    # Longer if the tick's time was over before the request to the source, because the machine may be busy.
    for seconds in (1.5, 6.0, 20.0, 60.0):
        started = time.monotonic()
        agent.tick("sample", expires=seconds)
        result = agent.result()
        duration = time.monotonic() - started
        if source.requests:
            break
    assert (result.outcome, result.stage, result.reason) == ("error", "fetch", "deadline")
    assert seconds - 0.5 < duration < seconds + PATIENCE
    source.script(matrix(SERIES))
    agent.tick("sample")
    assert agent.result().outcome == "ok"


def test_overlapping_cycle_of_a_scorer_is_skipped(agent: Agent, source: ScriptedServer) -> None:
    gate = Gate(matrix(SERIES))
    source.script(gate)
    first = agent.tick("sample")
    assert gate.entered.wait(60)
    second = agent.tick("sample")
    skipped = agent.result()
    assert (skipped.run, skipped.outcome, skipped.reason) == (second, "skipped", "overlap")
    gate.opened.set()
    result = agent.result()
    assert (result.run, result.outcome) == (first, "ok")
    assert len(source.requests) == 1
    assert agent.no_result(0.3)


def test_hanging_scorer_does_not_delay_other_scorers(agent: Agent, scorer: ScriptedServer) -> None:
    with ScriptedServer(hanging=httpserver.hang, good=matrix(SERIES)) as source:
        healthy_summary = summary("good", f"{source.url}/good", scorer.url)
        slow = {"scoringInterval": 300, "timeoutSeconds": 200}
        agent.configure(summary("hanging", f"{source.url}/hanging", scorer.url, **slow), healthy_summary)
        agent.tick("hanging", expires=300)
        wait_for(lambda: "/hanging" in source.paths(), 20, "the source that hangs to be asked")
        agent.tick("good")
        result = agent.result()
        assert (result.scorer, result.outcome) == ("good", "ok")
        # The hanging cycle reaches its deadline only now, with its scorer.
        agent.configure(healthy_summary)
        result = agent.result()
        assert (result.scorer, result.reason) == ("hanging", "deadline")


def test_hanging_scorers_of_one_namespace_stop_no_others(make_agent: AgentFactory, scorer: ScriptedServer) -> None:
    with ScriptedServer(hanging=httpserver.hang, good=matrix(SERIES)) as source:
        slow = {"scoringInterval": 300, "timeoutSeconds": 200, "namespace": "greedy"}
        hanging = [summary(f"hanging{number}", f"{source.url}/hanging", scorer.url, **slow) for number in range(24)]
        other = summary("other", f"{source.url}/good", scorer.url, namespace="team")
        healthy_summaries = [summary("own", f"{source.url}/good", scorer.url), other]
        agent = make_agent(agent_concurrency=8)
        agent.configure(*hanging, *healthy_summaries)
        agent.start()
        for _ in range(3):
            for hanging_summary in hanging:
                agent.tick(hanging_summary["name"], expires=300)
        wait_for(lambda: source.paths().count("/hanging") >= 3, 20, "the sources that hang to be asked")
        for _ in range(3):
            for name in ("own", "other"):
                agent.tick(name)
                result = agent.result()
                assert (result.scorer, result.outcome) == (name, "ok")
        assert source.paths().count("/hanging") == 3
        # Ticks that expire while the threads of their namespace hang report that, although all of them wait.
        agent.tick("hanging23", expires=1)
        result = agent.result()
        assert (result.scorer, result.outcome, result.reason) == ("hanging23", "skipped", "share_full")
        assert "namespace greedy hold their share of this agent's threads (3 of 8)" in result.message
        agent.configure(*healthy_summaries)
        # The waiting ticks belong to scorers that were removed.
        agent.tick("own")
        assert (
            wait_for(lambda: (result := agent.result()).scorer == "own" and result, 60, "the own one").outcome == "ok"
        )


def test_ticks_that_waited_for_an_agent_that_was_away(make_agent: AgentFactory, source: ScriptedServer) -> None:
    with ScriptedServer(answer(RESULTS)) as scorer:
        agent = make_agent()
        agent.configure(summary("sample", source.url, scorer.url))
        runs = [agent.tick("sample", expires=0.2) for _ in range(50)]
        deadline = time.time() + 0.2
        wait_for(lambda: time.time() > deadline, message="the time of all to be over")
        agent.start()
        fresh = agent.tick("sample")
        results = {result.run: result for result in (agent.result() for _ in range(51))}
    assert {(results[run].outcome, results[run].reason) for run in runs} == {("skipped", "expired")}
    assert results[fresh].outcome == "ok"
    assert len(source.requests) == 1


@pytest.mark.parametrize("stage", ["score", "publish"])
def test_killed_in_a_stage_the_next_tick_scores(
    make_agent: AgentFactory, source: ScriptedServer, scorer: ScriptedServer, redis_client: redis.Redis, stage: str
) -> None:
    agent = make_agent()
    agent.configure(summary("sample", source.url, scorer.url))
    agent.start()
    gate = Gate(answer(RESULTS))
    if stage == "score":
        # More than fits into memory between two stages.
        source.script(matrix(*[SERIES] * 4000))
    # Redis keeps the message of publish in the queue, so the agent dies between score and publish.
    scorer.script(gate)
    agent.tick("sample")
    assert gate.entered.wait(60)
    if stage == "publish":
        redis_client.execute_command("CLIENT", "PAUSE", "1500", "WRITE")
        gate.opened.set()
        time.sleep(0.5)
    agent.kill()
    gate.opened.set()
    source.script(matrix(SERIES))
    scorer.script(answer(RESULTS))
    time.sleep(1.6 if stage == "publish" else 0)
    agent.start()
    assert agent.spooled() == []
    run_id = agent.tick("sample")
    runs = [agent.result().run]
    while runs[-1] != run_id:
        runs.append(agent.result().run)
    # At most the publish of the old run survived in the queue; no result arrives twice.
    assert len(runs) <= 2
    assert len(set(runs)) == len(runs)
    assert agent.no_result(0.3)
    assert agent.spooled() == []


def test_tick_with_a_huge_expiry_does_not_block_later_ticks(agent: Agent, source: ScriptedServer) -> None:
    # A tick with a deadline in a year: its run ends after at most three timeouts.
    source.script(answer("no", 404))
    agent.tick("sample", expires=31_536_000)
    assert agent.result().reason == "http_error"
    source.script(matrix(SERIES))
    agent.tick("sample")
    assert agent.result().outcome == "ok"


def test_no_token_is_ever_shown(make_agent: AgentFactory, redis_client: redis.Redis) -> None:
    def echo(exchange: httpserver.Exchange) -> None:
        exchange.send(("x" * 100 + exchange.request.headers.get("Authorization", "")).encode(), 200)

    def echo_refused(exchange: httpserver.Exchange) -> None:
        exchange.send(exchange.request.headers["Authorization"].encode(), 418)

    monitored: list[str] = []
    auth = {
        "sourceEndpointAuthName": "s",
        "sourceEndpointAuthKey": "k",
        "scoringEndpointAuthName": "s",
        "scoringEndpointAuthKey": "k",
        "maxRetries": 0,
    }
    with (
        ScriptedServer(matrix(SERIES), echo_refused, echo, matrix(SERIES), matrix(SERIES)) as source,
        ScriptedServer(answer(RESULTS), echo, echo_refused) as scorer,
        redis_client.monitor() as monitor,
    ):
        agent = make_agent(log_level="DEBUG")
        agent.configure(summary("sample", f"{source.url}/?t=1", scorer.url, **auth))
        agent.token("s", "k", CANARY + "\n")
        with agent:
            outcomes = []
            for _ in range(5):
                agent.tick("sample")
                result = agent.result()
                outcomes.append((result.stage, result.reason))
                assert CANARY[:12] not in result.model_dump_json()
            page = agent.page()[1]
        assert outcomes == [
            ("", ""),
            ("fetch", "http_error"),
            ("fetch", "bad_answer"),
            ("score", "bad_answer"),
            ("score", "http_error"),
        ]
        # Each of them gets it.
        for server in (source, scorer):
            assert server.requests[0].headers["Authorization"] == f"Bearer {CANARY}"
        redis_client.echo("the end")
        while "the end" not in (command := monitor.next_command()["command"]):
            monitored.append(command)
    assert CANARY not in page
    assert CANARY[:12] not in agent.log()
    assert CANARY[:12] not in "".join(monitored)
    assert any("hub.mail" in command for command in monitored)
