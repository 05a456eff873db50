"""Plans compared with the best possible plan."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import given, settings
from hypothesis import strategies as st

from dsf.optimizer import search, ties
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
    assert sum(assignment.replicas for assignment in plan.assignments) == placed
    assert sum(assignment.kept for assignment in plan.assignments) == stays
    check_books(problem, plan)
    return plan


def check_books(problem: PlanInput, plan: Plan) -> None:
    """Check capacities, one used configuration per cluster, and that every replica is counted."""
    configuration_by_cluster = {configuration.cluster: configuration for configuration in plan.configurations}
    assert len(configuration_by_cluster) == len(plan.configurations)
    assert {(assignment.cluster, assignment.policy) for assignment in plan.assignments} == {
        (configuration.cluster, configuration.policy) for configuration in plan.configurations
    }
    workloads = {workload.name: workload for workload in problem.workloads}
    clusters = {definition.name: definition for definition in problem.clusters}
    for cluster, placed in configuration_by_cluster.items():
        supply = next(conf.supply for conf in clusters[cluster].configurations if conf.name == placed.policy)
        used_amounts: Counter[str] = Counter()
        for assignment in plan.assignments:
            if assignment.cluster == cluster:
                for kind, amount in workloads[assignment.workload].request.items():
                    used_amounts[kind] += amount * assignment.replicas
        assert all(amount <= supply.get(kind, 0) for kind, amount in used_amounts.items())
        assert {kind: amount for kind, amount in used_amounts.items() if amount} == {
            kind: amount for kind, amount in placed.used.items() if amount
        }
    counted: Counter[str] = Counter()
    for entry in (*plan.assignments, *plan.unplaced):
        counted[entry.workload] += entry.replicas
    assert counted == Counter({workload.name: workload.replicas for workload in problem.workloads})
    assert [explanation.workload for explanation in plan.explanation] == sorted(workloads)


def chunks(start: int, stop: int, *, whole_from: int) -> list[ParameterSet]:
    """Return the first seeds of all chunks. Only `make test-all` runs the chunks from `whole_from` on."""
    return [
        pytest.param(first, marks=[pytest.mark.whole] if first >= whole_from else [])
        for first in range(start, stop, CHUNK)
    ]


@pytest.mark.parametrize("first", chunks(0, 400, whole_from=150))
def test_random_problems_have_the_best_plan(first: int) -> None:
    for seed in range(first, first + CHUNK):
        problem = random_problem(seed)
        plan = check(problem)
        if seed % 10 == 0:
            # The order of the input does not change the plan.
            assert solve(shuffled(problem, random.Random(seed))) == plan


@pytest.mark.parametrize("first", chunks(5000, 5300, whole_from=5100))
def test_search_for_large_problems_finds_the_best_plan(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MAX_RELAXED_ITEMS", 0)
    monkeypatch.setattr(search, "_PER_ROW", 1)
    monkeypatch.setattr(search, "_CORE_ITEMS_PER_ROW", 1)
    monkeypatch.setattr(ties, "_MAX_COMBINATIONS", 6)
    for seed in range(first, first + CHUNK):
        check(random_problem(seed))


@st.composite
def problems(draw: st.DrawFn) -> PlanInput:
    """Draw problems of one score, which Hypothesis can shrink."""
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
            tuple(CurrentAssignment(name, draw(st.none() | devices)) for name in names if draw(st.booleans())),
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
