"""Plans against the best one of all that there are."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsf.optimizer import search, ties
from dsf.optimizer.model import (
    Cluster,
    Configuration,
    Current,
    PlanInput,
    Preference,
    ScoreTable,
    SearchLimits,
    Workload,
)
from dsf.optimizer.plan import Plan
from dsf.optimizer.solve import solve
from dsf.optimizer.views import Coverage, Status

from .bruteforce import UNIT, best, counts_of, random_problem, shuffled

CHUNK = 50


def check(problem: PlanInput) -> Plan:
    plan = solve(problem)
    (total, placed, stays, _), counts = best(problem)
    assert counts_of(plan) == counts
    assert plan.objective == pytest.approx(total / UNIT, abs=1e-9)
    assert plan.bound == plan.objective
    assert plan.gap == 0
    assert plan.ties_exact
    assert plan.status is Status.OPTIMAL
    assert (plan.coverage in (Coverage.ALL_PLACED, Coverage.PART_PLACED)) == bool(counts)
    assert (plan.coverage is Coverage.ALL_PLACED) == bool(counts and not plan.unplaced)
    assert sum(one.replicas for one in plan.assignments) == placed
    assert sum(one.kept for one in plan.assignments) == stays
    check_books(problem, plan)
    return plan


def check_books(problem: PlanInput, plan: Plan) -> None:
    """Never over capacity, one configuration a cluster and none without a workload, every replica accounted for."""
    chosen = {one.cluster: one for one in plan.configurations}
    assert len(chosen) == len(plan.configurations)
    assert {(one.cluster, one.policy) for one in plan.assignments} == {
        (one.cluster, one.policy) for one in plan.configurations
    }
    workloads = {one.name: one for one in problem.workloads}
    clusters = {one.name: one for one in problem.clusters}
    for cluster, one in chosen.items():
        supply = next(conf.supply for conf in clusters[cluster].configurations if conf.name == one.policy)
        used: Counter[str] = Counter()
        for assignment in plan.assignments:
            if assignment.cluster == cluster:
                for kind, amount in workloads[assignment.workload].request.items():
                    used[kind] += amount * assignment.replicas
        assert all(amount <= supply.get(kind, 0) for kind, amount in used.items())
        assert {kind: amount for kind, amount in used.items() if amount} == {
            kind: amount for kind, amount in one.used.items() if amount
        }
    counted: Counter[str] = Counter()
    for entry in (*plan.assignments, *plan.unplaced):
        counted[entry.workload] += entry.replicas
    assert counted == Counter({one.name: one.replicas for one in problem.workloads})
    assert [one.workload for one in plan.explanation] == sorted(workloads)


@pytest.mark.parametrize("first", range(0, 400, CHUNK))
def test_random_problems_have_the_best_plan(first: int) -> None:
    for seed in range(first, first + CHUNK):
        problem = random_problem(seed)
        plan = check(problem)
        if seed % 10 == 0:
            # In another order it is the same.
            assert solve(shuffled(problem, random.Random(seed))) == plan


@pytest.mark.parametrize("first", range(5000, 5300, CHUNK))
def test_the_way_of_large_problems_gives_the_same(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MEDIUM", 0)
    monkeypatch.setattr(search, "_PER_ROW", 1)
    monkeypatch.setattr(search, "_CORE", 1)
    monkeypatch.setattr(ties, "_ANSWERS", 6)
    for seed in range(first, first + CHUNK):
        check(random_problem(seed))


@st.composite
def problems(draw: st.DrawFn) -> PlanInput:
    """Problems of one score, drawn so that a failing one is made small."""
    devices = st.sampled_from(["a", "b"])
    amounts = st.integers(0, 4)
    names = ["c1", "c2", "c3"][: draw(st.integers(1, 3))]
    workloads = tuple(
        Workload(
            f"w{number}",
            draw(st.sampled_from(["x", "y"])),
            {"gpu": draw(amounts), "cpu": draw(st.integers(0, 1))},
            draw(st.integers(1, 3)),
            draw(st.sampled_from([None, 1])),
            tuple(Current(name, draw(st.none() | devices)) for name in names if draw(st.booleans())),
        )
        for number in range(draw(st.integers(0, 3)))
    )
    clusters = tuple(
        Cluster(
            name,
            tuple(
                Configuration(f"p{number}", draw(devices), {"gpu": draw(amounts), "cpu": draw(st.integers(0, 3))})
                for number in range(draw(st.integers(0, 2)))
            ),
            (
                ScoreTable(
                    "s", draw(st.dictionaries(st.sampled_from(["x;a", "x;b", "y;a", "y;b"]), st.integers(-3, 5)))
                ),
            ),
        )
        for name in names
    )
    weight = draw(st.sampled_from([1.0, -1.0, 0.3, 2.5]))
    return PlanInput(
        workloads, clusters, (Preference("s", weight),), keep_current=draw(st.sampled_from([0.0, 1.0, 0.7]))
    )


@settings(max_examples=150)
@given(problems(), st.integers(0, 100))
def test_drawn_problems_have_the_best_plan_in_any_order(problem: PlanInput, seed: int) -> None:
    plan = solve(problem)
    if problem.workloads:
        assert check(problem) == plan
    else:
        assert (plan.status, plan.coverage) == (Status.OPTIMAL, Coverage.NOTHING_TO_PLACE)
    assert solve(shuffled(problem, random.Random(seed))) == plan


def test_plan_within_the_mip_gap_reports_a_valid_bound() -> None:
    for seed in range(7000, 7050):
        problem = random_problem(seed)
        plan = solve(problem, SearchLimits(mip_gap=0.2))
        (total, *_), _ = best(problem)
        assert plan.objective <= total / UNIT + 1e-9 <= plan.bound + 2e-9
        assert plan.gap <= 0.2 + 1e-9
        check_books(problem, plan)
