"""Plans of problems that can be solved by hand."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from dsf.errors import ManifestError
from dsf.optimizer import search
from dsf.optimizer.model import (
    Cluster,
    Configuration,
    CurrentAssignment,
    PlanInput,
    Preference,
    ScoreTable,
    SearchLimits,
    Workload,
)
from dsf.optimizer.plan import Plan
from dsf.optimizer.solve import solve
from dsf.optimizer.views import Coverage, Reason, Status
from tests.support.planproblems import make_problem
from tests.support.wait import PATIENCE

from .test_bruteforce import check_books

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def cluster(name: str, supply: Mapping[str, int], scores: Mapping[str, int], **table_fields: datetime) -> Cluster:
    """Return a cluster with one configuration per device, named `p-<device>`, with this supply of gpu."""
    configurations = tuple(Configuration(f"p-{device}", device, {"gpu": amount}) for device, amount in supply.items())
    return Cluster(name, configurations, (ScoreTable("s", scores, **table_fields),))


def workload(name: str, gpu: int = 1, replicas: int = 1, current: str | None = None, **fields: int) -> Workload:
    """Return a workload whose app has the same name."""
    current_assignments = (CurrentAssignment(current),) if current else ()
    return Workload(name, name, {"gpu": gpu}, replicas, current=current_assignments, **fields)


def plan_of(
    workloads: list[Workload], clusters: list[Cluster], *, weight: float = 1, keep_current: float = 0, **limits: float
) -> Plan:
    problem = PlanInput(tuple(workloads), tuple(clusters), (Preference("s", weight),), NOW, keep_current)
    return solve(problem, SearchLimits(**limits))


def list_assignments(plan: Plan) -> list[tuple[str, str, int]]:
    return [(assignment.workload, assignment.cluster, assignment.replicas) for assignment in plan.assignments]


def test_empty_problem_gives_an_optimal_empty_plan() -> None:
    plan = plan_of([], [cluster("c1", {"all": 1}, {})])
    assert (plan.status, plan.objective, plan.bound, plan.gap) == (Status.OPTIMAL, 0, 0, 0)
    assert plan.coverage is Coverage.NOTHING_TO_PLACE
    assert plan.configurations == []


def test_no_clusters_and_no_configurations() -> None:
    for clusters in ([], [Cluster("c1")]):
        plan = plan_of([workload("a")], clusters)
        assert (plan.status, plan.coverage) == (Status.OPTIMAL, Coverage.NOTHING_PLACED)
        assert [(unplaced.workload, unplaced.reason) for unplaced in plan.unplaced] == [("a", Reason.NO_CONFIGURATION)]


def test_capacity_counts_per_kind_of_resource() -> None:
    clusters = [Cluster("c1", (Configuration("p", "all", {"cpu": 9}),), (ScoreTable("s", {"a;all": 50}),))]
    plan = plan_of([workload("a")], clusters)
    assert plan.unplaced[0].reason is Reason.TOO_LARGE
    assert plan.unplaced[0].message == (
        "no configuration with a score is large enough; c1 with all supplies 0 of gpu; 1 needed"
    )


def test_missing_score_forbids_only_its_option() -> None:
    clusters = [cluster("c1", {"all": 1, "half": 1}, {"a;half": 10}), cluster("c2", {"all": 1}, {"b;all": 1})]
    plan = plan_of([workload("a")], clusters)
    assert list_assignments(plan) == [("a", "c1", 1)]
    assert plan.assignments[0].device == "half"
    assert [(gap.cluster, gap.reason, gap.message) for gap in plan.score_gaps] == [
        ("c1", Reason.NO_SCORE, "AddOnPlacementScore s of cluster c1 has no item a;all"),
        ("c2", Reason.NO_SCORE, "AddOnPlacementScore s of cluster c2 has no item a;all"),
    ]
    explanation = plan.explanation[0]
    assert (explanation.reason, explanation.next_best, explanation.options_without_score) == (Reason.NO_SCORE, None, 2)


def test_unused_cluster_gets_no_configuration() -> None:
    clusters = [cluster(name, {"all": 2, "half": 4}, {"a;all": value}) for name, value in (("c1", 5), ("c2", 9))]
    plan = plan_of([workload("a"), workload("b")], clusters)
    assert [(configuration.cluster, configuration.policy) for configuration in plan.configurations] == [("c2", "p-all")]
    assert [(unplaced.workload, unplaced.reason) for unplaced in plan.unplaced] == [("b", Reason.NO_SCORE)]
    assert plan.unplaced[0].message == "no cluster has a score of app b"


def test_expired_scores_are_not_used() -> None:
    clusters = [
        cluster("c1", {"all": 1}, {"a;all": 90}, valid_until=NOW),
        cluster("c2", {"all": 1}, {"a;all": 10}, valid_until=NOW + timedelta(seconds=1)),
        Cluster("c3", (Configuration("p", "all", {"gpu": 1}),)),
    ]
    plan = plan_of([workload("a")], clusters)
    assert list_assignments(plan) == [("a", "c2", 1)]
    assert [(gap.cluster, gap.reason, gap.message) for gap in plan.score_gaps] == [
        ("c1", Reason.EXPIRED, "AddOnPlacementScore s of cluster c1 expired at 2030-01-01T00:00:00+00:00"),
        ("c3", Reason.NO_SCORE, "there is no AddOnPlacementScore s in namespace c3"),
    ]
    assert (plan.explanation[0].options_with_expired_score, plan.explanation[0].options_without_score) == (1, 1)
    only = plan_of([workload("a")], clusters[:1])
    assert (only.coverage, only.unplaced[0].reason) == (Coverage.NOTHING_PLACED, Reason.EXPIRED)
    assert only.unplaced[0].message == "all scores of app a have expired"


def test_negative_score_is_not_placed_and_zero_is() -> None:
    clusters = [cluster("c1", {"all": 2}, {"a;all": -1, "b;all": 0})]
    plan = plan_of([workload("a"), workload("b")], clusters)
    assert list_assignments(plan) == [("b", "c1", 1)]
    assert (plan.unplaced[0].workload, plan.unplaced[0].reason) == ("a", Reason.NEGATIVE)


def test_ties_prefer_more_placed_then_staying_then_names() -> None:
    # The alternatives are one workload of 100, or two of 50.
    clusters = [cluster("c1", {"all": 2}, {"big;all": 100, "x;all": 50, "y;all": 50})]
    assert list_assignments(plan_of([workload("big", 2), workload("x"), workload("y")], clusters)) == [
        ("x", "c1", 1),
        ("y", "c1", 1),
    ]
    alike = [cluster(name, {"all": 1}, {"a;all": 5, "b;all": 5}) for name in ("c1", "c2", "c3")]
    assert list_assignments(plan_of([workload("b"), workload("a")], alike)) == [("a", "c1", 1), ("b", "c2", 1)]
    assert list_assignments(plan_of([workload("a", current="c3"), workload("b")], alike)) == [
        ("a", "c3", 1),
        ("b", "c1", 1),
    ]


def test_names_decide_between_options_of_equal_value() -> None:
    names = [f"c{number}" for number in range(3)]
    workloads = [workload(f"w{number}") for number in range(6)]
    scores = {f"w{number};{device}": 1 for number in range(6) for device in ("all", "half")}
    plan = plan_of(workloads, [cluster(name, {"all": 1, "half": 3}, scores) for name in names])
    # The first workload is on c0 with `all`, which is first by name; the others have six options.
    assert [(assignment.workload, assignment.cluster, assignment.device) for assignment in plan.assignments] == [
        ("w0", "c0", "all"),
        ("w1", "c1", "half"),
        ("w2", "c1", "half"),
        ("w3", "c1", "half"),
        ("w4", "c2", "half"),
        ("w5", "c2", "half"),
    ]


def test_keep_current_outweighs_small_gains() -> None:
    clusters = [cluster("c1", {"all": 1}, {"a;all": 50}), cluster("c2", {"all": 1}, {"a;all": 54})]
    workloads_on_c1 = [workload("a", current="c1")]
    assert list_assignments(plan_of(workloads_on_c1, clusters)) == [("a", "c2", 1)]
    plan = plan_of(workloads_on_c1, clusters, keep_current=4.5)
    assert list_assignments(plan) == [("a", "c1", 1)]
    assert (plan.objective, plan.score_sum, plan.assignments[0].kept) == (54.5, 50, 1)
    assert (plan.explanation[0].reason, plan.explanation[0].message) == (
        Reason.KEPT,
        "scores 4 more, and staying is worth 4.5",
    )
    even = [cluster("c1", {"all": 1}, {"a;all": 50}), cluster("c2", {"all": 1}, {"a;all": 50})]
    plan = plan_of(workloads_on_c1, even, keep_current=0.5)
    assert (plan.explanation[0].reason, plan.explanation[0].message) == (
        Reason.KEPT,
        "scores the same, and staying is worth 0.5",
    )
    assert list_assignments(plan_of(workloads_on_c1, clusters, keep_current=3.5)) == [("a", "c2", 1)]


def test_replicas_spread_and_may_be_placed_in_part() -> None:
    clusters = [cluster("c1", {"all": 5}, {"a;all": 9}), cluster("c2", {"all": 2}, {"a;all": 5})]
    plan = plan_of([workload("a", 2, replicas=4)], clusters)
    assert list_assignments(plan) == [("a", "c1", 2), ("a", "c2", 1)]
    assert (plan.objective, plan.unplaced[0].replicas, plan.unplaced[0].reason) == (23, 1, Reason.CAPACITY)
    assert list_assignments(plan_of([workload("a", 2, replicas=4, per_cluster=1)], clusters)) == [
        ("a", "c1", 1),
        ("a", "c2", 1),
    ]


def test_kept_replica_stays_on_its_current_device() -> None:
    clusters = [cluster("c1", {"all": 1, "half": 1}, {"a;all": 5, "a;half": 5})]
    moved = Workload("a", "a", {"gpu": 1}, current=(CurrentAssignment("c1", "half"),))
    plan = plan_of([moved], clusters)
    assert (plan.assignments[0].device, plan.assignments[0].kept) == ("half", 1)


def test_mixed_preference_requires_all_scores() -> None:
    def mixed(name: str, power: dict[str, int]) -> Cluster:
        return Cluster(
            name,
            (Configuration("p", "all", {"gpu": 1}),),
            (ScoreTable("perf", {"a;all": 40}), ScoreTable("power", power)),
        )

    preferences = (Preference("perf", 0.7), Preference("power", 0.3, "${cluster}/${app}"))
    clusters = (mixed("c1", {"c1/a": 10}), mixed("c2", {"c2/a": 20}), mixed("c3", {"c1/a": 100}))
    plan = solve(PlanInput((workload("a"),), clusters, preferences))
    assert list_assignments(plan) == [("a", "c2", 1)]
    assert plan.objective == 34
    assert [(gap.score, gap.message) for gap in plan.score_gaps] == [
        ("power", "AddOnPlacementScore power of cluster c3 has no item c3/a")
    ]


def test_sums_are_exact_where_floats_are_not() -> None:
    # The products 0.1 x 3 and 0.3 x 1 are equal, but not as floats, which would decide the tie wrongly.
    clusters = tuple(
        Cluster(
            name,
            (Configuration("p", "all", {"gpu": 1}),),
            (ScoreTable("s", {"a;all": first}), ScoreTable("t", {"a;all": second})),
        )
        for name, first, second in (("c1", 0, 1), ("c2", 3, 0))
    )
    plan = solve(PlanInput((workload("a"),), clusters, (Preference("s", 0.1), Preference("t", 0.3))))
    assert list_assignments(plan) == [("a", "c1", 1)]


@pytest.mark.parametrize("seconds", [0.001, 0.05, 1.0])
def test_time_limit_gives_a_plan_with_its_gap(seconds: float) -> None:
    problem = make_problem(60, 20, 3)
    started = time.monotonic()
    plan = solve(problem, SearchLimits(time_limit=seconds))
    assert time.monotonic() - started < seconds + PATIENCE
    assert plan.assignments
    assert plan.objective <= plan.bound
    assert plan.gap == pytest.approx((plan.bound - plan.objective) / plan.bound)
    assert (plan.status is Status.OPTIMAL) == (plan.gap == 0)
    check_books(problem, plan)


def test_medium_problem_is_solved_within_a_small_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(40, 15, 3, load=0.5)

    def plan_with_small_gap() -> Plan:
        # A busy machine may need the longer limit.
        for seconds in (2, 20):
            plan = solve(problem, SearchLimits(time_limit=seconds))
            if plan.gap < 0.1:
                break
        return plan

    whole = plan_with_small_gap()
    monkeypatch.setattr(search, "_MAX_CORE_ITEMS", 0)
    few = plan_with_small_gap()
    for plan in (whole, few):
        assert plan.gap < 0.1
        check_books(problem, plan)
    assert max(whole.objective, few.objective) <= min(whole.bound, few.bound)


def test_current_place_is_a_candidate_however_low_it_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MAX_RELAXED_ITEMS", 0)
    monkeypatch.setattr(search, "_PER_ROW", 1)
    monkeypatch.setattr(search, "_PER_COLUMN", 0)
    clusters = [cluster(f"c{number:02}", {"all": 1}, {"a;all": 60 + number}) for number in range(30)]
    plan = plan_of([workload("a", current="c00")], clusters, keep_current=100)
    assert list_assignments(plan) == [("a", "c00", 1)]


def test_scores_beyond_any_are_refused() -> None:
    with pytest.raises(ManifestError, match="score s of cluster c1: 1e\\+09 is not a valid score"):
        plan_of([workload("a")], [cluster("c1", {"all": 1}, {"a;all": 10**9})])
