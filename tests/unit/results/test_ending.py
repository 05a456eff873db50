"""The effect of a result on the records of a pair, without Redis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.api.scorerule import Aggregate
from dsf.fleet.pairviews import make_item_views
from dsf.messages import Result
from dsf.results.ending import compute_score_digest, make_ending
from dsf.store.registry import ScorerRecord

NOW = 1_800_000_000.0
RUN = "1799999999000-0123abcd"


def record(**values: object) -> ScorerRecord:
    return ScorerRecord(
        **{
            "name": "s",
            "score_name": "score",
            "interval": 30,
            "validity": 300,
            "dimension_formats": ("${node}",),
            **values,
        }
    )


def result(**values: object) -> Result:
    return Result(**{"cluster": "c", "scorer": "s", "run": RUN, "at": NOW, "outcome": "ok", **values})


@pytest.mark.parametrize(
    ("reported_outcome", "results", "refused_results", "outcome"),
    [
        ("ok", [({"node": "a"}, 1.0)], {}, "ok"),
        ("ok", [], {}, "empty"),
        ("empty", [], {}, "empty"),
        ("empty", [({"node": "a"}, 1.0)], {}, "ok"),
        ("ok", [({"node": "a"}, 1.0)], {"nan": 1}, "partial"),
        ("ok", [], {"nan": 1}, "partial"),
        ("partial", [({"node": "a"}, 1.0)], {}, "partial"),
        ("ok", [({"pod": "a"}, 1.0)], {}, "partial"),
        ("ok", [({"node": "a"}, 1.0), ({"node": "a", "pod": "b"}, 2.0)], {}, "ok"),
    ],
)
def test_outcome(reported_outcome: str, results: list, refused_results: dict, outcome: str) -> None:
    ending = make_ending(result(outcome=reported_outcome, results=results, refused=refused_results), record(), now=NOW)
    assert ending.outcome == outcome
    assert ending.counters["n:" + outcome] == 1


def test_unused_and_empty_labels_are_dropped_and_of_twins_the_later_stands() -> None:
    results = [({"node": "a", "rack": "1"}, 1.0), ({"node": "b"}, 2.0), ({"node": "a", "meta": ""}, 3.0)]
    ending = make_ending(result(results=results), record(), now=NOW)
    assert ending.score is not None
    assert ending.score.results == [({"node": "a"}, 3.0), ({"node": "b"}, 2.0)]


def test_twins_may_name_their_labels_in_any_order() -> None:
    results = [({"node": "a", "pod": "p"}, 1.0), ({"pod": "a", "node": "p"}, 2.0), ({"pod": "p", "node": "a"}, 3.0)]
    ending = make_ending(result(results=results), record(), now=NOW)
    assert ending.score is not None
    assert ending.score.results == [({"node": "a", "pod": "p"}, 3.0), ({"node": "p", "pod": "a"}, 2.0)]


def test_failure_without_reason_is_unknown() -> None:
    ending = make_ending(result(outcome="error"), record(), now=NOW)
    assert ending.failure is not None
    assert (ending.failure.reason, ending.failure.at) == ("unknown", NOW)
    assert make_ending(result(outcome="skipped"), record(), now=NOW).counters == {"n:skipped:unknown": 1}


def test_run_of_the_future_is_stale_and_blamed_on_clocks() -> None:
    ending = make_ending(result(run="1800000060000-0123abcd"), record(), now=NOW)
    assert ending.refusal == "stale"
    assert ending.failure is not None
    assert "60 s ahead of" in ending.failure.message


@given(st.lists(st.tuples(st.text(max_size=5), st.integers(-100, 100)), unique_by=lambda item: item[0]))
def test_digest_ignores_the_order_of_items(items: list[tuple[str, int]]) -> None:
    assert compute_score_digest("s", items) == compute_score_digest("s", reversed(items))
    assert compute_score_digest("s", items) != compute_score_digest("t", items)
    assert compute_score_digest("s", [*items, ("more than five", 1)]) != compute_score_digest("s", items)


_LABELS = st.dictionaries(st.sampled_from(["node", "pod", "meta", "rack"]), st.text(max_size=8), max_size=4)
_RESULTS = st.lists(st.tuples(_LABELS, st.floats(allow_nan=False, allow_infinity=False)), max_size=12)


@given(_RESULTS, st.sampled_from(["ok", "empty", "partial"]), st.dictionaries(st.text(max_size=5), st.integers(0, 9)))
def test_any_result_has_one_outcome_and_only_valid_items(results: list, outcome: str, refused_results: dict) -> None:
    ending = make_ending(result(outcome=outcome, results=results, refused=refused_results), record(), now=NOW)
    assert sum(n for name, n in ending.counters.items() if name in ("n:ok", "n:empty", "n:partial", "n:error")) == 1
    assert ending.score is not None
    names = [name for name, _ in ending.score.items]
    assert len(names) == len(set(names))
    assert all(name and -100 <= value <= 100 for name, value in ending.score.items)


def test_each_format_of_the_scorer_makes_items() -> None:
    scorer = record(dimension_formats=("${node}", "${node};${pod}"))
    ending = make_ending(result(results=[({"node": "n", "pod": "p"}, 7.0)]), scorer, now=NOW)
    assert ending.score is not None
    assert ending.score.items == [("n", 7), ("n;p", 7)]
    items = make_item_views(ending.score, scorer, "c")
    assert [(item.name, item.scored, item.labels["pod"]) for item in items] == [("n", 7.0, "p"), ("n;p", 7.0, "p")]


def test_results_are_aggregated_for_items_but_not_for_metrics() -> None:
    # The last two differ only in an unknown label: both count.
    results = [({"node": "n", "pod": "p"}, 7.0), ({"node": "n", "rack": "1"}, 1.0), ({"node": "n", "rack": "2"}, 2.0)]
    scorer = record(aggregate=Aggregate(how="sum", by=("node",)))
    ending = make_ending(result(results=results), scorer, now=NOW)
    assert ending.score is not None
    assert ending.score.items == [("n", 10)]
    assert ending.score.results == [({"node": "n", "pod": "p"}, 7.0), ({"node": "n"}, 2.0)]
    endless = make_ending(result(results=[({}, 1.7e308)] * 2), record(aggregate=Aggregate(how="sum")), now=NOW)
    assert (endless.outcome, endless.counters["n:refused:infinite"]) == ("partial", 1)


@pytest.mark.parametrize(
    ("validity", "interval", "valid"),
    [(300, None, 300), (300, 600, 1800), (300, 5, 300), (301, 600, 301), (60, 600, 60)],
)
def test_default_validity_follows_the_interval_and_a_chosen_one_does_not(
    validity: int, interval: int | None, valid: int
) -> None:
    ending = make_ending(result(results=[({"node": "a"}, 1.0)]), record(validity=validity), now=NOW, interval=interval)
    assert ending.score.valid_until == NOW + valid
