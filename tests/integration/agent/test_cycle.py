"""Whole cycles: real ticks through a real Redis into a real agent, results verified as the hub does."""

from __future__ import annotations

import time

from celery import Celery

from tests.integration.agent.conftest import SERIES
from tests.integration.agent.harness import CLUSTER, Agent, summary
from tests.support import httpserver
from tests.support.httpserver import ScriptedServer, answer, matrix
from tests.support.wait import wait_for


def test_tick_produces_a_signed_result(agent: Agent, source: ScriptedServer, scorer: ScriptedServer) -> None:
    before = int(time.time())
    run_id = agent.tick("sample")
    result = agent.result()
    assert (result.cluster, result.scorer, result.run) == (CLUSTER, "sample", run_id)
    assert (result.outcome, result.stage, result.reason) == ("ok", "", "")
    assert result.results == [({"node": "n1", "pod": "a"}, 12.5)]
    assert set(result.timings) == {"fetch", "score", "publish"}
    assert result.counts["series"] == 1
    assert result.counts["results"] == 1
    assert result.counts["bytes_in"] > result.counts["bytes_out"] > 50
    assert before <= result.at <= time.time()
    (query_request,) = source.requests
    end = int(query_request.query["end"])
    assert (before - 60 < end <= time.time(), end % 60) == (True, 0)
    assert query_request.query == {"query": "up", "start": str(end - 3600), "end": str(end), "step": "60"}
    (scoring_request,) = scorer.requests
    assert scoring_request.json() == {"data": [SERIES]}
    assert agent.spooled() == []
    assert agent.no_result(0.2)


def test_cycle_reads_several_sources_of_two_types(agent: Agent, source: ScriptedServer, scorer: ScriptedServer) -> None:
    with ScriptedServer(answer('free{node="n1"} 7\n', Content_Type="text/plain")) as collector:
        collector_source = {"type": "OpenTelemetry", "endpoint": f"{collector.url}/metrics", "range": 3600, "step": 60}
        additional_sources = [
            {"name": name, "query": query, **collector_source} for name, query in (("free", "free"), ("none", "other"))
        ]
        agent.configure(summary("sample", source.url, scorer.url, sourceName="load", sources=additional_sources))
        agent.tick("sample")
        assert agent.result().outcome == "ok"
        scoring_request = scorer.requests[0].json()
    assert (scoring_request["data"], scoring_request["sources"]["load"], scoring_request["sources"]["none"]) == (
        [SERIES],
        [SERIES],
        [],
    )
    (free,) = scoring_request["sources"]["free"]
    # Each has its own window in the agent's memory.
    assert (free["metric"]["node"], free["values"][-1][1]) == ("n1", "7")


def test_manual_celery_task_creates_its_own_run(agent: Agent, source: ScriptedServer) -> None:
    before = time.time()
    with Celery("by-hand", broker=_url(agent)) as app:
        app.conf.broker_transport_options = {"sep": ":", "priority_steps": [0]}
        app.send_task("dsf.cycle", args=["sample"], queue=f"spoke.{CLUSTER}")
        result = agent.result()
    assert result.outcome == "ok"
    # By the hub's clock, as well as the agent knows it.
    assert before - 2 < int(result.run[:13]) / 1000 < time.time() + 2
    assert len(source.requests) == 1
    assert agent.no_result(0.2)


def test_repeated_tick_does_not_start_a_second_cycle(agent: Agent, source: ScriptedServer) -> None:
    """A push that is tried again may arrive twice."""
    run = agent.tick("sample", expires=60)
    assert agent.result().run == run
    for expires in (60, -1):
        agent.tick("sample", run_id=run, expires=expires)
    # Ticks are handled in order.
    last = agent.tick("sample")
    assert agent.result().run == last
    assert agent.no_result(0.2)
    assert len(source.requests) == 2
    # Celery ignores errors of handlers of expired tasks, so there is no result either.
    assert "Signal handler" not in agent.log()
    assert "Traceback" not in agent.log()


def _url(agent: Agent) -> str:
    port = agent.redis.connection_pool.connection_kwargs["port"]
    return f"redis://127.0.0.1:{port}/0"


def test_cycle_sends_several_queries_without_series(agent: Agent, scorer: ScriptedServer) -> None:
    other = {"metric": {"pod": "b"}, "values": [[1718600000, "2"]]}
    with ScriptedServer(matrix(SERIES), matrix(), matrix(other)) as source:
        agent.configure(summary("sample", source.url, scorer.url, sourceQuery='a{x=";"};b;c;'))
        agent.tick("sample")
        assert agent.result().counts["series"] == 2
        assert [request.query["query"] for request in source.requests] == ['a{x=";"}', "b", "c"]
        assert scorer.requests[0].json() == {"data": [SERIES, other]}
        source.script(matrix())
        scorer.script(answer({"results": []}))
        agent.tick("sample")
        assert agent.result().outcome == "empty"
        assert scorer.requests[1].body == b'{"data":[]}'


def test_source_none_queries_nothing_and_unsupported_sources_are_errors(
    agent: Agent, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    agent.configure(
        summary("static", source.url, scorer.url, sourceType="None"),
        summary("newer", source.url, scorer.url, sourceType="OfALaterVersion"),
    )
    agent.tick("static")
    assert agent.result().outcome == "ok"
    assert scorer.requests[0].body == b'{"data":[]}'
    agent.tick("newer")
    result = agent.result()
    assert (result.outcome, result.stage, result.reason) == ("error", "fetch", "unsupported_source")
    assert source.requests == []


def test_agent_metrics_follow_the_cycles(own_agent: Agent, scorer: ScriptedServer) -> None:
    own_agent.tick("sample")
    own_agent.result()
    assert own_agent.page("/healthz") == (200, "ok\n")
    assert own_agent.page("/other")[0] == 404
    wait_for(
        lambda: own_agent.metrics('dynamic_scoring_requests_total{score_name="sample-score",status="success"} 1.0')
    )
    labels = 'ds_app="",ds_cluster="worker01",ds_container="",ds_device="",ds_meta="",ds_namespace="",ds_node="n1"'
    assert own_agent.metrics("dynamic_score{") == [
        f'dynamic_score{{{labels},ds_pod="a",ds_score_name="sample-score"}} 12.5'
    ]
    for name in ("fetch", "perform", "send"):
        assert own_agent.metrics(f'dynamic_scoring_{name}_seconds_total{{score_name="sample-score"}}')
    assert own_agent.metrics('dynamic_scoring_stage_seconds_count{ds_score_name="sample-score",stage="publish"} 1.0')
    assert own_agent.metrics("dynamic_scoring_config_valid 1.0")
    # Results missing from the response are removed, and invalid results are counted while the others remain.
    scorer.script(answer('{"results":[{"metric":{"node":"n2"},"score":1},{"score":null},{"metric":{},"score":NaN}]}'))
    own_agent.tick("sample")
    result = own_agent.result()
    assert (result.outcome, result.results) == ("partial", [({"node": "n2"}, 1.0)])
    assert result.refused == {"null_score": 1, "nan": 1}
    expected = [
        'dynamic_scoring_results_refused_total{ds_score_name="sample-score",reason="nan"} 1.0',
        'dynamic_scoring_results_refused_total{ds_score_name="sample-score",reason="null_score"} 1.0',
    ]
    # Refused results are counted when the result has been published.
    wait_for(lambda: sorted(own_agent.metrics("dynamic_scoring_results_refused_total{")) == expected)
    assert [line.split("ds_node=")[1][:4] for line in own_agent.metrics("dynamic_score{")] == ['"n2"']


def test_cycle_with_many_results_succeeds_and_oversized_results_fail(agent: Agent, source: ScriptedServer) -> None:
    def results(count: int, size: int) -> httpserver.Handler:
        return answer({"results": [{"metric": {"pod": f"p{i}", "meta": "x" * size}, "score": i} for i in range(count)]})

    with ScriptedServer(results(10_000, 20)) as scorer:
        agent.configure(summary("sample", source.url, scorer.url))
        agent.tick("sample")
        assert len(agent.result().results) == 10_000
        scorer.script(results(10_000, 200))
        agent.tick("sample")
        result = agent.result()
        assert (result.outcome, result.stage, result.reason) == ("error", "publish", "too_large")
        scorer.script(results(10_001, 1))
        agent.tick("sample")
        assert agent.result().reason == "too_many_results"
