"""The pure function `solve(problem, limits) -> Plan`.

The function is pure apart from the clock: the same problem gives the same plan, regardless of the order of its parts,
if the search ends by itself. A call uses one core for up to `limits.time_limit` seconds, so call it in a separate
thread or process.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsf.optimizer.explain import Explainer
from dsf.optimizer.model import PlanInput, SearchLimits
from dsf.optimizer.plan import Plan, UnscoredAssignment
from dsf.optimizer.program import Clock
from dsf.optimizer.search import Incumbent, search
from dsf.optimizer.table import REFUSALS, Table, make_table
from dsf.optimizer.ties import break_ties
from dsf.optimizer.values import IntArray
from dsf.optimizer.views import AssignmentView, ConfigurationView, Coverage, PlanView, Reason, Status, UnplacedView

_DEFAULT = SearchLimits()


def solve(problem: PlanInput, limits: SearchLimits = _DEFAULT) -> Plan:
    """Return the plan with the greatest sum of scores. `dsf.optimizer.ties` selects among several such plans.

    There is always a plan, because a plan may place nothing. Raises ManifestError for scores or weights without an
    exact sum.
    """
    clock = Clock(limits.time_limit)
    table = make_table(problem)
    incumbent = search(table, limits.mip_gap, clock)
    counts, are_ties_broken = incumbent.counts, False
    if incumbent.is_within_gap(limits.mip_gap):
        counts, are_ties_broken = break_ties(table, incumbent, clock)
        incumbent.counts, incumbent.value = counts, int(counts @ table.items.value)
    return _make_plan(table, incumbent, are_ties_broken=are_ties_broken, clock=clock)


def _make_plan(table: Table, incumbent: Incumbent, *, are_ties_broken: bool, clock: Clock) -> Plan:
    placed = np.zeros_like(table.stay_limit)
    np.add.at(placed, (table.items.row, table.items.column), incumbent.counts)
    kept_replicas = np.minimum(placed, table.stay_limit)
    bound = max(incumbent.bound, incumbent.value)
    explainer = Explainer(table, placed)
    rows = range(len(table.workloads))
    unplaced = [entry for row in rows if (entry := explainer.explain_unplaced(row)) is not None]
    return Plan(
        status=Status.OPTIMAL if bound == incumbent.value else Status.FEASIBLE,
        coverage=_make_coverage(table, placed, unplaced),
        placed=PlanView(
            assignments=[
                _make_assignment(table, option, placed, kept_replicas)
                for option in zip(*np.nonzero(placed), strict=True)
            ],
            configurations=[
                _make_configuration(table, column, placed) for column in np.flatnonzero(placed.any(axis=0)).tolist()
            ],
        ),
        unplaced=unplaced,
        objective=table.score(incumbent.value),
        score_sum=table.score(incumbent.value - int(kept_replicas.sum()) * table.scores.stay_bonus),
        bound=table.score(bound),
        gap=(bound - incumbent.value) / bound if bound else 0.0,
        ties_exact=are_ties_broken,
        explanation=[explainer.explain(row) for row in rows],
        score_gaps=table.scores.gaps,
        unscored_assignments=_list_unscored_assignments(table),
        clusters=table.clusters,
        requests={workload.name: workload.request for workload in table.workloads},
        seconds=clock.elapsed,
    )


def _make_coverage(table: Table, placed: IntArray, unplaced: list[UnplacedView]) -> Coverage:
    if not table.workloads:
        return Coverage.NOTHING_TO_PLACE
    if not placed.any():
        return Coverage.NOTHING_PLACED
    return Coverage.PART_PLACED if unplaced else Coverage.ALL_PLACED


def _make_assignment(
    table: Table, option: tuple[int, int], placed: IntArray, kept_replicas: IntArray
) -> AssignmentView:
    row, column = option
    return AssignmentView(
        workload=table.workloads[row].name,
        **_make_column_fields(table, column),
        score=table.score(int(table.value[option])),
        replicas=int(placed[option]),
        kept=int(kept_replicas[option]),
    )


def _make_configuration(table: Table, column: int, placed: IntArray) -> ConfigurationView:
    used_amounts: dict[str, int] = {}
    for row in np.flatnonzero(placed[:, column]):
        for kind, amount in sorted(table.workloads[row].request.items()):
            used_amounts[kind] = used_amounts.get(kind, 0) + amount * int(placed[row, column])
    supply = dict(sorted(table.configurations[column].supply.items()))
    return ConfigurationView(**_make_column_fields(table, column), supply=supply, used=used_amounts)


def _make_column_fields(table: Table, column: int) -> dict[str, Any]:
    configuration = table.configurations[column]
    return {
        "cluster": table.clusters[table.cluster_of[column]],
        "policy": configuration.name,
        "device": configuration.device,
    }


def _list_unscored_assignments(table: Table) -> tuple[UnscoredAssignment, ...]:
    assignments = {
        UnscoredAssignment(
            table.workloads[row].name,
            table.clusters[table.cluster_of[column]],
            table.configurations[column].device,
        )
        for row, column, _ in table.current
        if REFUSALS[table.refusal_codes[row, column]] in (Reason.NO_SCORE, Reason.EXPIRED)
    }
    return tuple(
        sorted(assignments, key=lambda assignment: (assignment.workload, assignment.cluster, assignment.device))
    )
