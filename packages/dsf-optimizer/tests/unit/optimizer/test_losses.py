"""Plans that would remove workloads because scores are missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dsf.optimizer.losses import find_losses
from dsf.optimizer.model import Cluster, Configuration, CurrentAssignment, PlanInput, Preference, ScoreTable, Workload
from dsf.optimizer.plan import UnscoredAssignment
from dsf.optimizer.solve import solve
from dsf.optimizer.views import AssignmentView, PlanView

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def cluster(name: str, value: int | None, *, supply: int = 2, expired: bool = False) -> Cluster:
    """Return a cluster with the device d; `value` is its score of every app, None means no score."""
    items = {} if value is None else {f"{app};d": value for app in "ab"}
    valid_until = NOW - timedelta(seconds=1) if expired else None
    return Cluster(name, (Configuration("p", "d", {"g": supply}),), (ScoreTable("s", items, valid_until),))


def workload(app: str, *clusters: str, replicas: int = 1, per_cluster: int | None = None) -> Workload:
    current = tuple(CurrentAssignment(cluster, "d") for cluster in clusters)
    return Workload(f"w{app}", app, {"g": 2}, replicas, per_cluster, current)


def losses_of(workloads: list[Workload], clusters: list[Cluster]) -> list[str]:
    """Return the losses of a new plan if the previous one has every workload on its current clusters."""
    previous = PlanView(
        assignments=[
            AssignmentView(
                workload=definition.name,
                cluster=assignment.cluster,
                policy="p",
                device="d",
                score=1,
                replicas=1,
                kept=0,
            )
            for definition in workloads
            for assignment in definition.current
        ],
        configurations=[],
    )
    plan = solve(PlanInput(tuple(workloads), tuple(clusters), (Preference("s"),), NOW))
    return find_losses(plan, previous)


@pytest.mark.parametrize("unscored_cluster", [cluster("c1", None), cluster("c1", 9, expired=True)])
def test_removal_without_a_score_of_the_current_place_is_a_loss(unscored_cluster: Cluster) -> None:
    (message,) = losses_of([workload("a", "c1")], [unscored_cluster, cluster("c2", 9, supply=1)])
    assert message.startswith("workload wa is placed now and would be removed, because no configuration")
    assert message.endswith(
        "while the scores of wa where it is now, c1 with d are unknown; renew the scores, or reset the namespace first"
    )


def test_unscored_workload_replaced_by_another_is_a_loss() -> None:
    workloads = [workload("a", "c1"), workload("b", "c2")]
    better = Cluster("c2", (Configuration("p", "d", {"g": 2}),), (ScoreTable("s", {"a;d": 9, "b;d": 8}),))
    (message,) = losses_of(workloads, [cluster("c1", None), better])
    assert message.startswith("workload wb is placed now")
    assert "scores of wa where it is now, c1 with d are unknown;" in message


def test_unscored_replica_of_two_is_a_loss() -> None:
    two = workload("a", "c1", "c2", replicas=2, per_cluster=1)
    assert len(losses_of([two], [cluster("c1", None), cluster("c2", 9)])) == 1
    # The placed replica stays; the unplaced one is no loss.
    assert losses_of([workload("a", "c2", replicas=2, per_cluster=1)], [cluster("c1", None), cluster("c2", 9)]) == []


def test_workload_without_any_score_is_a_loss() -> None:
    (message,) = losses_of([workload("a", "c1")], [cluster("c2", None)])
    assert "because no cluster has a score of app a; renew the scores" in message


def test_losses_exclude_causes_other_than_missing_scores() -> None:
    # The workload moves, scores below zero, no longer fits, or was never placed.
    assert losses_of([workload("a", "c1")], [cluster("c1", None), cluster("c2", 9)]) == []
    assert losses_of([workload("a", "c1")], [cluster("c1", -9)]) == []
    assert losses_of([workload("a", "c1")], [cluster("c1", 9, supply=1)]) == []
    assert losses_of([workload("a")], [cluster("c1", None)]) == []


def test_unscored_assignments_are_sorted() -> None:
    workloads = (workload("b", "c2", "c1"), workload("a", "c1"))
    problem = PlanInput(workloads, (cluster("c2", None), cluster("c1", None)), (Preference("s"),), NOW)
    assert solve(problem).unscored_assignments == (
        UnscoredAssignment("wa", "c1", "d"),
        UnscoredAssignment("wb", "c1", "d"),
        UnscoredAssignment("wb", "c2", "d"),
    )


def test_unscored_alternative_of_a_growing_workload_is_a_loss() -> None:
    """The workload outgrows its place, and the larger cluster has no current score."""
    larger = workload("a", "c1")
    for unscored_cluster in (cluster("c2", None), cluster("c2", 9, expired=True)):
        (message,) = losses_of([larger], [cluster("c1", 9, supply=1), unscored_cluster])
        assert "while the scores of 1 other options of it are unknown" in message
    # With all scores known, the request is the cause.
    assert losses_of([larger], [cluster("c1", 9, supply=1), cluster("c2", 9, supply=1)]) == []
