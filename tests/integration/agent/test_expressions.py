"""Cycles of expressions and composites in a real agent: ticks through Redis, results verified as the hub does."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from dsf.settings import settings
from tests.integration.agent.harness import Agent, summary
from tests.support.commandline import dsf
from tests.support.httpserver import ScriptedServer, matrix
from tests.support.wait import wait_for

_EXPRESSION = {"scoringEndpoint": "", "expression": "100 * last"}
_COMPOSITE = {
    "sourceType": "Scores",
    "scoringEndpoint": "",
    "expression": "half + other",
    "scores": [{"scorer": "sample", "as": "half"}, {"scorer": "formula", "as": "other"}],
}


def test_expression_and_composite_are_scored_without_a_scoring_api(
    agent: Agent, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    agent.configure(
        summary("sample", source.url, scorer.url),
        summary("formula", source.url, scorer.url, **_EXPRESSION),
        summary("composite", source.url, scorer.url, **_COMPOSITE),
    )
    agent.tick("composite")
    early = agent.result()
    assert (early.outcome, early.stage, early.reason) == ("error", "score", "missing_input")
    assert "'half' is missing, the score of 'sample'" in early.message
    agent.tick("formula")
    formula = agent.result()
    assert (formula.outcome, formula.results) == ("ok", [({"pod": "a"}, 50.0)])
    assert set(formula.timings) == {"fetch", "score", "publish"}
    assert scorer.requests == []
    agent.tick("sample")
    assert agent.result().results == [({"node": "n1", "pod": "a"}, 12.5)]
    agent.tick("composite")
    composite = agent.result()
    # The two have different labels, so each set lacks the other score.
    assert (composite.outcome, composite.refused) == ("partial", {"missing_input": 2})
    assert "is missing, the score of" in composite.message


def test_composite_is_tried_again_until_an_input_that_runs_at_the_same_time_has_its_first_score(
    agent: Agent, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    inputs = [{"scorer": "sample", "as": "half"}]
    agent.configure(
        summary("sample", source.url, scorer.url, **_EXPRESSION),
        summary("composite", source.url, scorer.url, **_COMPOSITE | {"expression": "2 * half", "scores": inputs}),
    )
    agent.tick("composite")
    agent.tick("sample")
    outcomes = {result.scorer: result.outcome for result in (agent.result(), agent.result())}
    assert outcomes == {"sample": "ok", "composite": "ok"}


def test_failing_series_is_counted_with_an_example(
    agent: Agent, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    agent.configure(summary("sample", source.url, scorer.url, **_EXPRESSION | {"expression": "double(labels.zone)"}))
    agent.tick("sample")
    result = agent.result()
    assert (result.outcome, result.refused) == ("partial", {"expression_failed": 1})
    assert result.message == 'there is no \'zone\': neither label nor key, for the series {__name__="up", pod="a"}'


def test_costly_expression_of_another_namespace_delays_no_other_scorer(
    agent: Agent, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    samples = [[1718600000 + number, str(number)] for number in range(200)]
    series = [{"metric": {"pod": f"p{number}"}, "values": samples} for number in range(2000)]
    costly = _EXPRESSION | {"expression": "values.map(a, values.filter(b, b > a).size()).size()", "namespace": "team"}
    with ScriptedServer(matrix(*series)) as many:
        agent.configure(summary("sample", source.url, scorer.url), summary("hostile", many.url, scorer.url, **costly))
        agent.tick("hostile")
        wait_for(lambda: many.requests, 60, "the query of the costly scorer")
        agent.tick("sample")
        results = [agent.result(120), agent.result(120)]
    assert [(result.scorer, result.outcome, result.reason) for result in results] == [
        ("sample", "ok", ""),
        ("hostile", "error", "expression_costly"),
    ]


@pytest.fixture
def in_pod(agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """An agent, and the environment of a command in its pod."""
    for name in [name for name in os.environ if name.startswith("DSF_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DSF_AGENT_KUBE", "true")
    monkeypatch.setenv("DSF_LISTEN_PORT", str(agent.port()))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    settings.cache_clear()
    yield agent
    settings.cache_clear()


def explain(agent: Agent) -> Any:
    arguments = ("explain", "composite", "--cluster", "worker01", "--config", str(agent.config), "-o", "json")
    return json.loads(dsf(*arguments).stdout)


def test_explain_in_the_pod_evaluates_the_last_results_of_the_agent(
    in_pod: Agent, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    composite = _COMPOSITE | {"scoreDimensionFormat": "${pod}", "expression": "2 * other"}
    composite["scores"] = [{"scorer": "formula", "as": "other"}, {"scorer": "sample", "as": "half", "default": 1}]
    in_pod.configure(
        summary("sample", source.url, scorer.url),
        summary("formula", source.url, scorer.url, **_EXPRESSION, namespace="team-a"),
        summary("composite", source.url, scorer.url, **composite, namespace="team-a"),
    )
    report = explain(in_pod)
    assert (report["outcome"], report["reason"]) == ("error", "missing_input")
    never = "it had no score on this cluster since the agent started"
    assert [score["problem"] for score in report["inputs"]] == [never, never]
    in_pod.tick("formula")
    assert in_pod.result().outcome == "ok"
    in_pod.tick("composite")
    published = in_pod.result()
    report = explain(in_pod)
    assert (report["outcome"], report["results"][0]["value"]) == ("ok", 100)
    assert published.results == [({"pod": "a"}, 100.0)]
    assert [(score["name"], score["value"], score["problem"]) for score in report["inputs"]] == [
        ("other", 50.0, ""),
        ("half", None, never),
    ]


def test_explain_without_an_agent_says_that_it_cannot_be_asked(
    in_pod: Agent, source: ScriptedServer, scorer: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_pod.configure(summary("composite", source.url, scorer.url, **_COMPOSITE))
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("DSF_LISTEN_PORT", str(server.getsockname()[1]))
    settings.cache_clear()
    report = explain(in_pod)
    assert (report["outcome"], report["reason"]) == ("error", "missing_input")
    assert "the agent of this pod has the scores of other scorers, and cannot be reached" in report["message"]


def test_last_results_have_a_page_for_local_clients_by_namespace(
    agent: Agent, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    agent.configure(summary("formula", source.url, scorer.url, **_EXPRESSION, namespace="team-a"))
    agent.tick("formula")
    assert agent.result().outcome == "ok"

    def results(**parameters: str) -> Any:
        status, body = agent.page(f"/results?{urlencode(parameters)}")
        assert status == 200
        return json.loads(body)

    assert results(scorer="formula", namespace="team-a") == {"results": [[{"pod": "a"}, 50.0]]}
    problem = "it had no score on this cluster since the agent started"
    assert results(scorer="formula") == {"problem": problem, "isExpired": False}
    assert results() == {"problem": problem, "isExpired": False}
