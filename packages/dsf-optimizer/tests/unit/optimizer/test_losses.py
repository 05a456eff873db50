"""Which plans would take workloads away for want of scores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dsf.optimizer.losses import losses
from dsf.optimizer.model import Cluster, Configuration, Current, PlanInput, Preference, ScoreTable, Workload
from dsf.optimizer.plan import UnknownPlace
from dsf.optimizer.solve import solve
from dsf.optimizer.views import AssignmentView, PlanView

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def cluster(name: str, value: int | None, *, supply: int = 2, expired: bool = False) -> Cluster:
    """One with the device d; `value`: the score of everything, None: it has none."""
    items = {} if value is None else {f"{app};d": value for app in "ab"}
    until = NOW - timedelta(seconds=1) if expired else None
    return Cluster(name, (Configuration("p", "d", {"g": supply}),), (ScoreTable("s", items, until),))


def workload(app: str, *places: str, replicas: int = 1, per_cluster: int | None = None) -> Workload:
    current = tuple(Current(place, "d") for place in places)
    return Workload(f"w{app}", app, {"g": 2}, replicas, per_cluster, current)


def found(workloads: list[Workload], clusters: list[Cluster]) -> list[str]:
    """What stands against a plan after one with every workload at its current places."""
    previous = PlanView(
        assignments=[
            AssignmentView(
                workload=one.name, cluster=place.cluster, policy="p", device="d", score=1, replicas=1, kept=0
            )
            for one in workloads
            for place in one.current
        ],
        configurations=[],
    )
    plan = solve(PlanInput(tuple(workloads), tuple(clusters), (Preference("s"),), NOW))
    return losses(plan, previous)


@pytest.mark.parametrize("gone", [cluster("c1", None), cluster("c1", 9, expired=True)])
def test_the_place_is_unknown(gone: Cluster) -> None:
    (message,) = found([workload("a", "c1")], [gone, cluster("c2", 9, supply=1)])
    assert message.startswith("workload wa is placed now and would be removed, because no configuration")
    assert message.endswith(
        "while the scores of wa where it is now, c1 with d are unknown; renew the scores, or reset the namespace first"
    )


def test_unscored_workload_replaced_by_another_is_a_loss() -> None:
    workloads = [workload("a", "c1"), workload("b", "c2")]
    better = Cluster("c2", (Configuration("p", "d", {"g": 2}),), (ScoreTable("s", {"a;d": 9, "b;d": 8}),))
    (message,) = found(workloads, [cluster("c1", None), better])
    assert message.startswith("workload wb is placed now")
    assert "scores of wa where it is now, c1 with d are unknown;" in message


def test_unscored_replica_of_two_is_a_loss() -> None:
    two = workload("a", "c1", "c2", replicas=2, per_cluster=1)
    assert len(found([two], [cluster("c1", None), cluster("c2", 9)])) == 1
    # One is placed now, and stays; that the other is not placed takes nothing away.
    assert found([workload("a", "c2", replicas=2, per_cluster=1)], [cluster("c1", None), cluster("c2", 9)]) == []


def test_workload_without_any_score_is_a_loss() -> None:
    (message,) = found([workload("a", "c1")], [cluster("c2", None)])
    assert "because no cluster has a score of app a; renew the scores" in message


def test_losses_exclude_causes_other_than_missing_scores() -> None:
    # It moves, it scores below zero, its cluster became too small, or it never was placed.
    assert found([workload("a", "c1")], [cluster("c1", None), cluster("c2", 9)]) == []
    assert found([workload("a", "c1")], [cluster("c1", -9)]) == []
    assert found([workload("a", "c1")], [cluster("c1", 9, supply=1)]) == []
    assert found([workload("a")], [cluster("c1", None)]) == []


def test_unknown_places_in_order() -> None:
    workloads = (workload("b", "c2", "c1"), workload("a", "c1"))
    problem = PlanInput(workloads, (cluster("c2", None), cluster("c1", None)), (Preference("s"),), NOW)
    assert solve(problem).unknown_places == (
        UnknownPlace("wa", "c1", "d"),
        UnknownPlace("wb", "c1", "d"),
        UnknownPlace("wb", "c2", "d"),
    )


def test_unscored_alternative_of_a_growing_workload_is_a_loss() -> None:
    """It needs more than its place has, and the larger one has no score now."""
    larger = workload("a", "c1")
    for gone in (cluster("c2", None), cluster("c2", 9, expired=True)):
        (message,) = found([larger], [cluster("c1", 9, supply=1), gone])
        assert "while the scores of 1 other options of it are unknown" in message
    # Where all scores are known, the request decides.
    assert found([larger], [cluster("c1", 9, supply=1), cluster("c2", 9, supply=1)]) == []
