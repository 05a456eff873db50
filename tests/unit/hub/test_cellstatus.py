"""Statuses of several cells: each its part, the first one the sums."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

from dsf.api.meta import Condition
from dsf.api.scorer import CellStatus, ClusterCounts, DynamicScorerStatus, Failure
from dsf.api.scoringconfig import ConfigCellStatus, DynamicScoringConfigStatus
from dsf.api.types import HealthStatus
from dsf.cells import Cell, Cells
from dsf.hub.cellstatus import own, part_of, summed

NOW = datetime(2026, 11, 24, tzinfo=UTC)
RULE = (Cell(name="a"), Cell(name="b"), Cell(name="c"))
A, B = Cells("a", RULE), Cells("b", RULE)


def condition(
    kind: str, status: Literal["True", "False", "Unknown"], reason: str, message: str, at: datetime = NOW
) -> Condition:
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time=at)


def failure(cluster: str, age: int) -> Failure:
    return Failure(cluster=cluster, stage="fetch", reason="timeout", time=NOW - timedelta(seconds=age))


def counts(desired: int, succeeding: int = 0, failing: int = 0) -> ClusterCounts:
    return ClusterCounts(desired=desired, succeeding=succeeding, failing=failing)


def test_the_first_cell_adds_up_what_the_others_wrote() -> None:
    mine = DynamicScorerStatus(
        clusters=counts(3, 3),
        clusters_with_other_interval=1,
        failures=[failure("x", 20)],
        conditions=[
            condition("Healthy", "True", "HealthCheckPassed", "fine"),
            condition("Scoring", "True", "CyclesSucceed", "3 of 3"),
        ],
    )
    theirs = CellStatus(
        name="b",
        clusters=counts(5, 4, 1),
        failures=[failure("y", 10)],
        conditions=[
            condition("Healthy", "True", "HealthCheckPassed", "fine"),
            condition("Scoring", "False", "SomeClustersFail", "1 of 5"),
        ],
    )
    long_ago = NOW - timedelta(days=1)
    gone = CellStatus(name="gone", clusters=counts(100))
    known = DynamicScorerStatus(
        cells=[gone, theirs], conditions=[condition("Healthy", "True", "HealthCheckPassed", "fine", long_ago)]
    )
    whole = summed(mine, known, A)
    assert whole.clusters == counts(8, 7, 1)
    assert whole.clusters_with_other_interval == 1
    assert [one.cluster for one in whole.failures] == ["y", "x"]
    said = {one.type: (one.status, one.reason, one.message) for one in whole.conditions}
    assert said == {
        "Healthy": ("True", "HealthCheckPassed", "fine"),
        "Scoring": ("False", "SomeClustersFail", "cell b: 1 of 5"),
    }
    assert whole.conditions[0].last_transition_time == long_ago
    # Only its own part is its to write.
    assert whole.cells == [part_of(mine, "a")]
    # The same again is no change.
    assert summed(mine, known.model_copy(update={"conditions": whole.conditions}), A) == whole


def test_a_cell_without_clusters_says_nothing_about_them() -> None:
    nowhere = condition("Scoring", "False", "NotDistributed", "it runs on no cluster")
    mine = DynamicScorerStatus(conditions=[nowhere])
    good = condition("Scoring", "True", "CyclesSucceed", "5 of 5")
    known = DynamicScorerStatus(cells=[CellStatus(name="b", clusters=counts(5, 5), conditions=[good])])
    assert summed(mine, known, A).conditions == [good]
    assert summed(mine, DynamicScorerStatus(), A).conditions == [nowhere]


def test_all_cells_are_named_where_they_do_not_say_the_same() -> None:
    mine = DynamicScorerStatus(clusters=counts(1, 1), conditions=[condition("Scoring", "True", "Fine", "1 of 1")])
    part = CellStatus(name="b", clusters=counts(2, 2), conditions=[condition("Scoring", "True", "Fine", "2 of 2")])
    [said] = summed(mine, DynamicScorerStatus(cells=[part]), A).conditions
    assert said.message == "cell a: 1 of 1; cell b: 2 of 2"


def test_what_many_cells_say_is_as_long_as_the_api_server_takes() -> None:
    mine = DynamicScorerStatus(conditions=[condition("Healthy", "False", "Bad", "x" * 20_000)])
    part = CellStatus(name="b", conditions=[condition("Healthy", "False", "Bad", "y" * 20_000)])
    whole = summed(mine, DynamicScorerStatus(cells=[part]), A)
    assert DynamicScorerStatus.model_validate(whole.model_dump()).conditions == whole.conditions


def test_a_cell_reads_its_own_part_again_and_not_the_sums() -> None:
    part = CellStatus(name="b", clusters=counts(5, 4, 1), conditions=[condition("Scoring", "True", "Fine", "b")])
    stored = DynamicScorerStatus(
        clusters=counts(8, 7, 1),
        score_name="cpu",
        health_status=HealthStatus.Active,
        conditions=[condition("Scoring", "True", "Fine", "all")],
        cells=[part],
    )
    found = own(stored, B)
    assert (found.clusters, found.conditions, found.score_name, found.cells) == (
        part.clusters,
        part.conditions,
        "cpu",
        None,
    )
    assert part_of(found, "b") == part
    # One that has written nothing yet, beside another one and after a hub alone.
    assert (own(stored, A).clusters, own(stored, A).health_status) == (counts(0), "Active")
    alone = stored.model_copy(update={"cells": None})
    assert own(alone, A) == alone
    assert (own(alone, B).clusters, own(alone, B).health_status) == (counts(0), "Active")
    assert own(stored, Cells()) == stored


def test_sums_of_the_configuration() -> None:
    mine = DynamicScoringConfigStatus(clusters=3, scorers=2, masked=1)
    known = DynamicScoringConfigStatus(cells=[ConfigCellStatus(name="b", clusters=4, scorers=3, masked=2)])
    whole = summed(mine, known, A)
    assert (whole.clusters, whole.scorers, whole.masked) == (7, 3, 3)
