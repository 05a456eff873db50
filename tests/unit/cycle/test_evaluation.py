from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dsf.api.expressions import ScoreInput, compile_cached
from dsf.api.scoringresponse import ScoringResponse
from dsf.api.summary import ScorerSummary
from dsf.cycle.composite import LastResults, NoResults, score_inputs
from dsf.cycle.evaluation import Evaluation, score_series
from dsf.errors import CycleError

_NODES = [
    {"metric": {"node": f"n{number}", "__name__": "load"}, "values": [[60, str(number)], [90, str(number + 1)]]}
    for number in range(3)
]


def evaluate(text: str, series: list[dict[str, Any]], queries: tuple[int, ...] = (), **fixed: Any) -> ScoringResponse:
    expression = compile_cached(text, ("Prometheus",))
    evaluation = Evaluation(expression, fixed, lambda: None)
    request = b'{"data":%s}' % json.dumps(series, separators=(",", ":")).encode()
    score_series(evaluation, expression, [request], queries or (len(series),))
    return evaluation.response


def combine_inputs(text: str, inputs: dict[str, Any], results: LastResults) -> ScoringResponse:
    scores = [ScoreInput(scorer=f"scorer-{name}", name=name, default=default) for name, default in inputs.items()]
    expression = compile_cached(text, ("Scores",), tuple(inputs))
    evaluation = Evaluation(expression, {}, lambda: None, ("item", "items"))
    score_inputs(evaluation, summary("composite", scores=scores), results.find)
    return evaluation.response


def summary(name: str, **fields: Any) -> ScorerSummary:
    return ScorerSummary.model_validate({"name": name, "score_name": name, "validity_seconds": 60, **fields})


def store(results: LastResults, name: str, values: list[Any], validity: float = 60.0, **fields: Any) -> None:
    results.put(summary(name, **fields), values, validity)


def move_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + seconds)


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("last", [1.0, 2.0, 3.0]),
        ("first", [0.0, 1.0, 2.0]),
        ("min + max", [1.0, 3.0, 5.0]),
        ("100 * mean", [50.0, 150.0, 250.0]),
        ("sum / count", [0.5, 1.5, 2.5]),
        ("stddev", [0.5, 0.5, 0.5]),
        ("times[1] - times[0]", [30.0, 30.0, 30.0]),
        ("trend(values, 30)", [2.0, 3.0, 4.0]),
        ("values[0] + size(values)", [2.0, 3.0, 4.0]),
        ('labels.node == "n1" ? last : null', [2.0]),
    ],
)
def test_variables_of_a_series(text: str, scores: list[float]) -> None:
    response = evaluate(text, _NODES)
    assert [result.score for result in response.results] == scores
    assert not response.refusal_counts


def test_results_have_the_used_labels_of_their_series() -> None:
    assert [result.labels for result in evaluate("last", _NODES).results] == [{"node": f"n{n}"} for n in range(3)]


def test_query_is_the_number_of_the_query_of_a_series() -> None:
    response = evaluate("query == 1 ? last : -last", _NODES, (1, 2))
    assert [result.score for result in response.results] == [-1.0, 2.0, 3.0]


def test_cluster_and_its_labels_are_variables() -> None:
    text = 'cluster == "paris" ? double(clusterLabels.price) : 0'
    response = evaluate(text, _NODES[:1], cluster="paris", clusterLabels={"price": "12.5"})
    assert [result.score for result in response.results] == [12.5]


def test_series_without_a_value_is_refused_with_an_example() -> None:
    response = evaluate('labels.node == "n1" ? 1 / 0 : last', _NODES)
    assert [result.score for result in response.results] == [1.0, 3.0]
    assert response.refusal_counts == {"expression_failed": 1}
    assert response.note == 'division by zero, for the series {node="n1", __name__="load"}'


def test_infinite_and_nan_values_are_refused() -> None:
    response = evaluate("query == 0 ? 1 / (last - last) : (last - last) / (last - last)", _NODES, (1, 2))
    assert response.results == []
    assert response.refusal_counts == {"infinite": 1, "nan": 2}


def test_series_of_nulls_gives_no_result_and_says_so() -> None:
    response = evaluate("null", _NODES)
    assert (response.results, response.note) == ([], "the expression is null for each of 3 series")
    assert evaluate("last", []).note == "there are no series"


def test_minimum_ignores_nan() -> None:
    series = [{"metric": {}, "values": [[1, "NaN"], [2, "5"], [3, "3"]]}]
    assert evaluate("min + max", series).results[0].score == 8.0


def test_more_results_than_one_cycle_may_have_fail_it() -> None:
    series = [{"metric": {"node": str(number)}, "value": [1, "1"]} for number in range(10_001)]
    with pytest.raises(CycleError) as error:
        evaluate("last", series)
    assert error.value.reason == "too_many_results"


def test_200000_series_of_which_few_count_are_evaluated() -> None:
    series = [{"metric": {"node": str(number)}, "value": [1, str(number)]} for number in range(200_000)]
    assert len(evaluate("last < 5 ? last : null", series).results) == 5


def test_expression_costly_for_each_series_ends_the_cycle_by_its_steps() -> None:
    values = [[number, str(number)] for number in range(200)]
    series = [{"metric": {"node": str(number)}, "values": values} for number in range(2000)]
    with pytest.raises(CycleError) as error:
        evaluate("values.map(a, values.filter(b, b > a).size()).size()", series)
    assert error.value.reason == "expression_costly"


def test_composite_combines_scores_by_their_labels() -> None:
    results = LastResults()
    store(results, "scorer-cpu", [({"node": "a"}, 10.0), ({"node": "b"}, 20.0)])
    store(results, "scorer-watts", [({}, -50.0)])
    response = combine_inputs("0.5 * cpu + watts", {"cpu": None, "watts": None}, results)
    assert response.results == [({"node": "a"}, -45.0), ({"node": "b"}, -40.0)]


def test_composite_of_scores_without_labels_has_one_result() -> None:
    results = LastResults()
    store(results, "scorer-cpu", [({}, 10.0)])
    store(results, "scorer-watts", [({}, 20.0)])
    assert combine_inputs("cpu + watts", {"cpu": None, "watts": None}, results).results == [({}, 30.0)]


_NODES_AB = [({"node": "a"}, 10.0), ({"node": "b"}, 20.0)]


@pytest.mark.parametrize(
    ("watts", "default", "scores", "refused_count", "cause"),
    [
        # A valid score of the input.
        ([({"node": "a"}, 1.0), ({"node": "b"}, 2.0)], None, [11.0, 22.0], 0, ""),
        ([({}, 5.0)], None, [15.0, 25.0], 0, ""),
        # The score lacks an item.
        ([({"node": "a"}, 1.0)], None, [11.0], 1, "it has no item with these labels"),
        ([({"node": "a"}, 1.0)], -100.0, [11.0, -80.0], 0, ""),
        ([], None, [], 2, "it has no item with these labels"),
        ([], -100.0, [-90.0, -80.0], 0, ""),
        # The score has expired.
        ("expired", None, [], 2, "its last score is 61 s old and was valid for 60 s"),
        ("expired", -100.0, [-90.0, -80.0], 0, ""),
        # The agent never had a score of it.
        ("never", -100.0, [-90.0, -80.0], 0, ""),
    ],
)
def test_item_without_each_input_takes_the_default_or_is_refused_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
    watts: Any,
    default: float | None,
    scores: list[float],
    refused_count: int,
    cause: str,
) -> None:
    results = LastResults()
    if watts != "never":
        store(results, "scorer-watts", [({"node": "a"}, 1.0)] if watts == "expired" else watts)
    if watts == "expired":
        move_clock(monkeypatch, 61)
    store(results, "scorer-cpu", _NODES_AB)
    response = combine_inputs("cpu + watts", {"cpu": None, "watts": default}, results)
    assert [result.score for result in response.results] == scores
    assert response.refusal_counts == ({"missing_input": refused_count} if refused_count else {})
    if refused_count:
        assert response.note.startswith(f"'watts' is missing, the score of 'scorer-watts': {cause}, for the item {{")


def test_composite_of_expired_inputs_alone_is_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    results = LastResults()
    store(results, "scorer-cpu", _NODES_AB)
    move_clock(monkeypatch, 100)
    response = combine_inputs("cpu", {"cpu": None}, results)
    assert (response.results, response.refusal_counts) == ([], {"missing_input": 1})
    expected = "'cpu' is missing, the score of 'scorer-cpu': its last score is 100 s old and was valid for 60 s"
    assert response.note == expected


def test_input_without_any_score_since_the_start_fails_the_cycle_and_is_named() -> None:
    results = LastResults()
    store(results, "scorer-cpu", _NODES_AB)
    with pytest.raises(CycleError) as error:
        combine_inputs("cpu + watts", {"cpu": None, "watts": None}, results)
    assert (error.value.stage, error.value.reason) == ("score", "missing_input")
    expected = (
        "'watts' is missing, the score of 'scorer-watts': it had no score on this cluster since the agent started"
    )
    assert error.value.message == expected


def test_composite_reads_aggregated_scores() -> None:
    results = LastResults()
    pods = [({"node": "a", "pod": "1"}, 10.0), ({"node": "a", "pod": "2"}, 20.0)]
    store(results, "scorer-cpu", pods, aggregate_by=("node",), aggregate_with="sum")
    assert combine_inputs("cpu", {"cpu": None}, results).results == [({"node": "a"}, 30.0)]


def test_aggregation_of_a_newer_hub_leaves_the_scores_as_they_are() -> None:
    results = LastResults()
    store(results, "scorer-cpu", [({"node": "a"}, 10.0)], aggregate_by=("node",), aggregate_with="newer")
    assert combine_inputs("cpu", {"cpu": None}, results).results == [({"node": "a"}, 10.0)]


def test_empty_label_joins_like_an_absent_one() -> None:
    results = LastResults()
    store(results, "scorer-cpu", [({"node": "a", "pod": ""}, 10.0)])
    store(results, "scorer-watts", [({"node": "a"}, 1.0)])
    assert combine_inputs("cpu + watts", {"cpu": None, "watts": None}, results).results == [({"node": "a"}, 11.0)]


def test_score_of_a_scorer_that_stopped_counts_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    results = LastResults()
    store(results, "kept", [({}, 1.0)])
    store(results, "stopped", [({}, 1.0)])
    store(results, "lasting", [({}, 1.0)], validity=900)
    results.drop_expired({"kept"})
    assert [results.find(name, None) for name in ("kept", "stopped")] == [[({}, 1.0)]] * 2
    move_clock(monkeypatch, 100)
    results.drop_expired({"kept"})
    expired = "its last score is 100 s old and was valid for 60 s"
    assert results.find("kept", None) == NoResults(expired, is_expired=True)
    assert results.find("stopped", None) == NoResults("it had no score on this cluster since the agent started")
    assert results.find("lasting", None) == [({}, 1.0)]


def test_evaluation_ends_with_its_time() -> None:
    expression = compile_cached("1", ("None",))

    def check() -> None:
        raise CycleError("score", "timeout", "late")

    with pytest.raises(CycleError, match="late"):
        Evaluation(expression, {}, check).run([{}])


def test_results_of_another_namespace_are_missing() -> None:
    results = LastResults()
    store(results, "scorer-cpu", [({}, 1.0)], namespace="team-a")
    with pytest.raises(CycleError, match="it had no score on this cluster"):
        combine_inputs("cpu", {"cpu": None}, results)


def test_composite_of_too_many_results_is_refused() -> None:
    results = LastResults()
    values = [({"node": f"n{number}"}, 1.0) for number in range(10_000)]
    for number in range(11):
        store(results, f"scorer-v{number}", values)
    inputs = {f"v{number}": None for number in range(11)}
    with pytest.raises(CycleError, match="have 110000 results together, more than 100000") as raised:
        combine_inputs(" + ".join(inputs), inputs, results)
    assert raised.value.reason == "too_many_results"
    del inputs["v10"]
    assert len(combine_inputs(" + ".join(inputs), inputs, results).results) == 10_000
