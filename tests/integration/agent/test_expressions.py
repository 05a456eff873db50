"""Cycles of expressions and composites in a real agent: ticks through Redis, results verified as the hub does."""

from __future__ import annotations

from tests.integration.agent.harness import Agent, summary
from tests.support.httpserver import ScriptedServer

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


def test_failing_series_is_counted_with_an_example(
    agent: Agent, source: ScriptedServer, scorer: ScriptedServer
) -> None:
    agent.configure(summary("sample", source.url, scorer.url, **_EXPRESSION | {"expression": "double(labels.zone)"}))
    agent.tick("sample")
    result = agent.result()
    assert (result.outcome, result.refused) == ("partial", {"expression_failed": 1})
    assert result.message == 'there is no \'zone\': neither label nor key, for the series {__name__="up", pod="a"}'
