"""What an agent makes of sources, scoring APIs, messages and a Redis that misbehave."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import redis

from dsf import keys
from dsf.store.ticks import TickFactory
from tests.integration.agent.conftest import RESULTS, SERIES, AgentFactory
from tests.integration.agent.harness import CLUSTER, Agent, summary
from tests.support import httpserver
from tests.support.httpserver import Gate, ScriptedServer, answer, matrix
from tests.support.redisserver import RedisServer
from tests.support.wait import PATIENCE, wait_for

#: The metric of what was no message.
REFUSED = "dynamic_scoring_messages_refused_total"

CANARY = "canary-token-93b1c7"


def test_a_stage_is_tried_again_with_its_arguments(
    agent: Agent, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    source.script(answer("busy", 503), httpserver.close_early, matrix(SERIES))
    scorer.script(answer("busy", 502), answer("slow down", 429, Retry_After="1"), answer(RESULTS))
    run_id = agent.tick("sample")
    result = agent.result()
    assert (result.run, result.outcome) == (run_id, "ok")
    # A kept connection that ends without an answer is none of the stage's tries: the HTTP client asks once more.
    assert result.counts["retries"] == 3
    assert len(source.requests) == 3
    assert len(scorer.requests) == 3
    assert agent.no_result(0.3)
    # The next one counts from zero.
    agent.tick("sample")
    assert "retries" not in agent.result().counts


def test_retry_after_as_a_date_is_kept(agent: Agent, scorer: ScriptedServer) -> None:
    moments: list[float] = []
    times: list[float] = []

    def slow_down(exchange: httpserver.Exchange) -> None:
        moment = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
        moments.append(moment.timestamp())
        answer("slow down", 429, Retry_After=format_datetime(moment, usegmt=True))(exchange)

    def good(exchange: httpserver.Exchange) -> None:
        times.append(time.time())
        answer(RESULTS)(exchange)

    scorer.script(slow_down, good)
    # A longer wait than until then would end the cycle at once.
    agent.tick("sample", expires=60)
    assert agent.result().outcome == "ok"
    assert len(moments) == len(times) == 1
    assert times[0] > moments[0] - 0.1


def test_retries_end_with_the_configured_number_and_the_deadline(agent: Agent, source: ScriptedServer) -> None:
    with ScriptedServer(answer("busy", 503)) as scorer:
        agent.configure(
            summary("twice", source.url, scorer.url, maxRetries=1),
            summary("never", source.url, scorer.url, maxRetries=0),
        )
        agent.tick("twice")
        result = agent.result()
        assert (result.outcome, result.stage, result.reason) == ("error", "score", "http_error")
        assert result.message.endswith("HTTP 503: busy")
        assert (len(scorer.requests), result.counts["retries"]) == (2, 1)
        agent.tick("never")
        agent.result()
        assert len(scorer.requests) == 3
        scorer.script(answer("busy", 503, Retry_After="1000"))
        agent.tick("twice", expires=600)
        started = time.monotonic()
        assert agent.result().reason == "http_error"
        # At once, not when the cycle's time is over.
        assert time.monotonic() - started < PATIENCE
        assert len(scorer.requests) == 4


def test_a_cycle_ends_before_the_next_one(agent: Agent, source: ScriptedServer) -> None:
    source.script(httpserver.hang)
    # More where the tick's time was over before the source was asked: machines are busy.
    for seconds in (1.5, 6.0, 20.0, 60.0):
        started = time.monotonic()
        agent.tick("sample", expires=seconds)
        result = agent.result()
        took = time.monotonic() - started
        if source.requests:
            break
    assert (result.outcome, result.stage, result.reason) == ("error", "fetch", "deadline")
    assert seconds - 0.5 < took < seconds + PATIENCE
    source.script(matrix(SERIES))
    agent.tick("sample")
    assert agent.result().outcome == "ok"


def test_a_second_cycle_of_a_scorer_is_skipped(agent: Agent, source: ScriptedServer) -> None:
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


def test_one_scorer_that_hangs_delays_no_other(agent: Agent, scorer: ScriptedServer) -> None:
    with ScriptedServer(hanging=httpserver.hang, good=matrix(SERIES)) as source:
        good = summary("good", f"{source.url}/good", scorer.url)
        slow = {"scoringInterval": 300, "timeoutSeconds": 200}
        agent.configure(summary("hanging", f"{source.url}/hanging", scorer.url, **slow), good)
        agent.tick("hanging", expires=300)
        wait_for(lambda: "/hanging" in source.paths(), 20, "the source that hangs to be asked")
        agent.tick("good")
        result = agent.result()
        assert (result.scorer, result.outcome) == ("good", "ok")
        # It hung all the while: its time ends only now, with its scorer.
        agent.configure(good)
        result = agent.result()
        assert (result.scorer, result.reason) == ("hanging", "deadline")


def test_ticks_that_waited_for_an_agent_that_was_away(make_agent: AgentFactory, source: ScriptedServer) -> None:
    with ScriptedServer(answer(RESULTS)) as scorer:
        agent = make_agent()
        agent.configure(summary("sample", source.url, scorer.url))
        runs = [agent.tick("sample", expires=0.2) for _ in range(50)]
        until = time.time() + 0.2
        wait_for(lambda: time.time() > until, message="the time of all to be over")
        agent.start()
        fresh = agent.tick("sample")
        results = {result.run: result for result in (agent.result() for _ in range(51))}
    assert {(results[run].outcome, results[run].reason) for run in runs} == {("skipped", "expired")}
    assert results[fresh].outcome == "ok"
    assert len(source.requests) == 1


@pytest.mark.parametrize("stage", ["fetch", "score", "publish"])
def test_killed_in_any_stage_the_next_tick_scores(
    make_agent: AgentFactory, source: ScriptedServer, scorer: ScriptedServer, redis_client: redis.Redis, stage: str
) -> None:
    agent = make_agent()
    agent.configure(summary("sample", source.url, scorer.url))
    agent.start()
    gate = Gate(matrix(SERIES) if stage == "fetch" else answer(RESULTS))
    if stage == "score":
        # More than is kept in memory between two stages.
        source.script(matrix(*[SERIES] * 4000))
    if stage == "publish":
        # Redis keeps the message of publish from being taken: the agent dies between score and publish.
        scorer.script(gate)
    else:
        (source if stage == "fetch" else scorer).script(gate)
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
    found = [agent.result().run]
    while found[-1] != run_id:
        found.append(agent.result().run)
    # At most the old run's publish survived in the queue; nothing comes twice.
    assert len(found) <= 2
    assert len(set(found)) == len(found)
    assert agent.no_result(0.3)
    assert agent.spooled() == []


@pytest.mark.parametrize("seconds", [1, 10])
def test_redis_is_away_while_a_cycle_runs(
    make_agent: AgentFactory, source: ScriptedServer, scorer: ScriptedServer, seconds: int
) -> None:
    with RedisServer(aof=True) as server:
        agent = make_agent(redis_url=server.url)
        agent.configure(summary("sample", source.url, scorer.url))
        agent.start()
        agent.tick("sample")
        assert agent.result().outcome == "ok"
        gate = Gate(answer(RESULTS))
        scorer.script(gate)
        first = agent.tick("sample", expires=60)
        assert gate.entered.wait(60)
        server.kill()
        gate.opened.set()
        wait_for(lambda: not agent.ready.exists(), 10, "the readiness file to go")
        away = time.time()
        time.sleep(seconds)
        if seconds > 5:
            wait_for(lambda: agent.alive.stat().st_mtime > away + seconds - 5, 10, "the liveness file to be touched")
        server.restart()
        second = wait_for(lambda: _ticked(agent), 30, "a tick after the restart")
        results = {result.run: result for result in (agent.result(40), agent.result(40))}
        assert set(results) == {first, second}
        # It waited to send its next message, and went on.
        assert results[first].outcome == "ok"
        assert results[second].outcome == "ok" or results[second].reason == "overlap"
        agent.tick("sample")
        assert agent.result(40).outcome == "ok"
        agent.stop()


def _ticked(agent: Agent) -> str:
    """The run id; empty while Redis is away."""
    try:
        return agent.tick("sample")
    except redis.ConnectionError:
        return ""


def test_messages_bring_no_addresses(own_agent: Agent, source: ScriptedServer, scorer: ScriptedServer) -> None:
    with ScriptedServer(answer("stolen")) as elsewhere:
        body = [[elsewhere.url, "1718600000000-00000000"], {}, {"callbacks": None, "chain": None}]
        template = own_agent.tick("sample")
        assert own_agent.result().run == template
        own_agent.redis.lpush(keys.spoke_queue(CLUSTER), _tick_with(own_agent, body))
        body[0] = ["sample", "../../etc/passwd"]
        own_agent.redis.lpush(keys.spoke_queue(CLUSTER), _tick_with(own_agent, body))
        body[0] = [{"sourceEndpoint": elsewhere.url}, ["x"]]
        own_agent.redis.lpush(keys.spoke_queue(CLUSTER), _tick_with(own_agent, body))
        wait_for(lambda: own_agent.metrics(REFUSED) == [f"{REFUSED} 3.0"], 10, "all three to be refused")
        assert elsewhere.requests == []
    assert own_agent.no_result(0.2)
    own_agent.tick("sample")
    assert own_agent.result().outcome == "ok"


def _tick_with(agent: Agent, body: object) -> str:
    message = json.loads(TickFactory().message(CLUSTER, "sample", "1718600000000-00000000", time.time() + 30))
    message["body"] = json.dumps(body)
    return json.dumps(message)


def test_what_a_message_carries_besides_does_not_hold_a_scorer_back(agent: Agent, source: ScriptedServer) -> None:
    # A tick that says it lasts a year: its run is over when three time-outs have passed at the latest.
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
        assert source.requests[0].headers["Authorization"] == f"Bearer {CANARY}"
        redis_client.echo("the end")
        while "the end" not in (command := monitor.next_command()["command"]):
            monitored.append(command)
    assert CANARY not in page
    assert CANARY[:12] not in agent.log()
    assert CANARY[:12] not in "".join(monitored)
    assert any("hub.mail" in command for command in monitored)


@pytest.mark.parametrize("part", ["source", "scorer"])
def test_a_scorer_that_is_removed_stops_at_once(
    make_agent: AgentFactory, source: ScriptedServer, scorer: ScriptedServer, part: str
) -> None:
    gate = Gate(matrix(SERIES) if part == "source" else answer(RESULTS))
    with ScriptedServer(gate) as hangs:
        agent = make_agent(agent_concurrency=1)
        slow = {"scoringInterval": 300, "timeoutSeconds": 200}
        addresses = (hangs.url, scorer.url) if part == "source" else (source.url, hangs.url)
        removed, other = summary("removed", *addresses, **slow), summary("other", source.url, scorer.url)
        agent.configure(removed, other)
        agent.start()
        agent.tick("removed", expires=300)
        assert gate.entered.wait(60)
        agent.configure(other)
        run = agent.tick("other", expires=300)
        found = {result.run: result for result in (agent.result(), agent.result())}
        assert found[run].outcome == "ok"
        (ended,) = [result for result in found.values() if result.scorer == "removed"]
        assert (ended.outcome, ended.reason) == ("error", "deadline")
        gate.opened.set()
