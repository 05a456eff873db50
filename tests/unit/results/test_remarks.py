"""The reason for missing items of a score has the same text in every reader."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dsf.fleet import rescore
from dsf.fleet.pairviews import make_score_view
from dsf.fleet.queries import FleetQueries
from dsf.fleet.rescore import RunView
from dsf.hub.cycleoutcomes import CycleOutcomes
from dsf.results.ending import make_ending
from dsf.store.pairs import Pairs
from dsf.web.pagedata import PageDataReader
from tests.integration.results.bed import ResultsHarness
from tests.unit.results.test_ending import NOW, record, result

ONE = ({"node": "a"}, 1.0)
SHARED = [({"node": "a"}, 1.0), ({"node": "a", "pod": "p"}, 2.0), ({"node": "a", "pod": "q"}, 3.0)]


@pytest.mark.parametrize(
    ("values", "reason", "parts"),
    [
        ({"results": [ONE]}, "", []),
        ({"refused": {"nan": 1}}, "nan", ["1 of 1 results refused: nan", "omit such results"]),
        ({"results": [({"pod": "a"}, 1.0)]}, "empty_dimension", ["1 of 1 results refused: empty_dimension", "label"]),
        ({"results": [ONE], "refused": {"nan": 1}}, "nan", ["1 of 2 results refused: nan"]),
        ({"refused": {"nan": 2, "bad_labels": 1}}, "nan", ["3 of 3 results refused: 2 nan, 1 bad_labels"]),
        ({"refused": {"of-tomorrow": 1}}, "other", ["1 of 1 results refused: other"]),
        ({"results": SHARED}, "duplicate_dimension", ["2 of 3 results replaced by a later one", "such as 'a'"]),
        # The results differ only in labels that are ignored, so they are duplicates before they get names.
        ({"results": [ONE, ONE, ONE]}, "duplicate_dimension", ["2 of 3 results replaced", "such as 'a'"]),
        ({"results": SHARED, "refused": {"nan": 4}}, "nan", ["4 of 7 results refused: nan", "2 of 7 results replaced"]),
        ({"counts": {"series": 0}}, "no_results", ["without results", "0 series"]),
        ({"counts": {"series": 3}}, "no_results", ["without results", "3 series"]),
    ],
)
def test_cycle_reports_ignored_parts_of_its_answer(values: dict[str, Any], reason: str, parts: list[str]) -> None:
    ending = make_ending(result(**values), record(), now=NOW)
    assert ending.history.reason == reason
    assert all(part in ending.history.message for part in parts), ending.history.message
    assert ("what to do: " in ending.history.message) is bool(reason)
    assert (ending.remark is not None) is bool(reason)


def test_metrics_of_the_same_labels_replace_each_other_too() -> None:
    ending = make_ending(result(results=[ONE, ONE]), record(destination="None"), now=NOW)
    assert (ending.outcome, ending.history.reason) == ("ok", "duplicate_dimension")
    assert "such as" not in ending.history.message


@pytest.mark.parametrize(
    ("values", "state", "reason", "condition"),
    [
        ({"results": [], "refused": {"nan": 2}}, "empty", "nan", "NoItems"),
        ({"results": [({"pod": "x"}, 1.0)]}, "empty", "empty_dimension", "NoItems"),
        ({"results": [], "counts": {"series": 4}}, "empty", "no_results", "NoItems"),
        ({"results": [ONE], "refused": {"nan": 2}}, "ok", "nan", "ResultsRefused"),
        ({"results": SHARED}, "ok", "duplicate_dimension", "ItemsReplaced"),
    ],
)
def test_every_reader_shows_the_remark(
    bed: ResultsHarness, values: dict[str, Any], state: str, reason: str, condition: str
) -> None:
    bed.now = time.time() - 1
    bed.cycle(**values)
    reader, reading = FleetQueries(bed.client), PageDataReader(bed.client)
    [pair] = Pairs(bed.client).read_rows([("c1", "s1")])
    assert pair.remark is not None
    text = pair.remark.message
    assert "what to do: " in text
    # The JSON API and `dsf scores`, `dsf status`, `dsf history`.
    records = bed.registry.read_scorers()
    remark = make_score_view(pair, records, bed.now).remark
    assert remark is not None
    assert (remark.reason, remark.message) == (reason, text)
    [scorer] = reader.scorers().scorers
    assert [(entry.reason, entry.message, entry.clusters) for entry in scorer.reasons] == [(reason, text, 1)]
    [cycle] = reader.history("c1", "s1").cycles
    assert (cycle.reason, cycle.message) == (reason, text)
    # `dsf rescore --wait`.
    [run] = rescore.wait_for_end(bed.client, "s1", [RunView(cluster="c1", run_id=cycle.run_id)], time.monotonic()).runs
    assert (run.reason, run.message, run.has_score) == (reason, text, state == "ok")
    # The page: a card of the scorer, the pair's line, its own page; and the search for the reason.
    [group] = reading.list_problem_groups([scorer])
    assert (group.state, group.reason, group.message, group.clusters) == (state, reason, text, 1)
    row, detail = reading.read_pair("c1", "s1")
    assert row.problem is not None
    assert (row.state.name, row.problem.reason, row.problem.message) == (state, reason, text)
    assert detail.cycles[0].message == text
    # The DynamicScorer's status.
    outcomes = CycleOutcomes.from_states([pair], bed.now)
    assert (outcomes.remark_reason, outcomes.remark) == (condition, f"c1: {text}")


def test_remark_ends_with_the_next_complete_score_or_with_expiry(bed: ResultsHarness) -> None:
    model, reading = FleetQueries(bed.client), PageDataReader(bed.client)
    bed.now = time.time() - 400
    bed.cycle(results=SHARED)
    # The score has expired: it is in the group of the expired.
    assert model.scorer("s1").reasons == []
    bed.now = time.time()
    bed.cycle(results=SHARED)
    assert [entry.reason for entry in model.scorer("s1").reasons] == ["duplicate_dimension"]
    bed.cycle()
    assert bed.pairs.read_state("c1", "s1").remark is None
    assert model.scorer("s1").reasons == []
    assert reading.list_problem_groups(model.scorers().scorers) == []
