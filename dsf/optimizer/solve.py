"""The one function of the optimiser: `solve(problem, limits) -> Plan`.

Pure apart from the clock: the same problem gives the same plan, in whatever order its parts come, as long as the search
ends by itself. It takes up to `limits.time_limit` seconds of one core, so it belongs on a thread or process of its own.
"""

from __future__ import annotations

import numpy as np

from dsf.optimizer.explain import Explainer
from dsf.optimizer.model import Limits, Problem
from dsf.optimizer.plan import Assignment, Chosen, Plan, Reason, Status, UnknownPlace
from dsf.optimizer.program import Clock
from dsf.optimizer.search import Found, Search
from dsf.optimizer.table import REFUSALS, Table, make_table
from dsf.optimizer.ties import break_ties
from dsf.optimizer.values import IntArray

_DEFAULT = Limits()


def solve(problem: Problem, limits: Limits = _DEFAULT) -> Plan:
    """The plan with the greatest sum of scores; of several the one that `ties` describes.

    There always is a plan: placing nothing is one. Raises ManifestError for scores or weights that have no exact sum.
    """
    clock = Clock(limits.time_limit)
    table = make_table(problem)
    found = Search(table, limits, clock).run()
    counts, exact = found.counts, False
    if found.good(limits.mip_gap):
        counts, exact = break_ties(table, found, clock)
        found.counts, found.value = counts, int(counts @ table.items.value)
    return _report(table, found, exact=exact, clock=clock)


def _report(table: Table, found: Found, *, exact: bool, clock: Clock) -> Plan:
    placed = _placed(table, found.counts)
    bound = max(found.bound, found.value)
    explainer = Explainer(table, placed)
    rows = range(len(table.workloads))
    stays = sum(min(count, table.stay.get(place, 0)) for place, count in placed.items())
    return Plan(
        status=_status(table, placed, proven=bound == found.value),
        assignments=tuple(_assignment(table, place, count) for place, count in sorted(placed.items())),
        configurations=_configurations(table, placed),
        unplaced=tuple(one for row in rows if (one := explainer.unplaced(row)) is not None),
        objective=table.score(found.value),
        score_sum=table.score(found.value - stays * table.scores.keep),
        bound=table.score(bound),
        gap=(bound - found.value) / bound if bound else 0.0,
        ties_exact=exact,
        explanation=tuple(explainer.explain(row) for row in rows),
        score_gaps=table.scores.gaps,
        unknown_places=_unknown_places(table),
        clusters=table.clusters,
        seconds=clock.passed,
    )


def _placed(table: Table, counts: IntArray) -> dict[tuple[int, int], int]:
    """Replicas by row and column."""
    placed: dict[tuple[int, int], int] = {}
    for item in np.flatnonzero(counts):
        place = (int(table.items.row[item]), int(table.items.column[item]))
        placed[place] = placed.get(place, 0) + int(counts[item])
    return placed


def _status(table: Table, placed: dict[tuple[int, int], int], *, proven: bool) -> Status:
    if not table.workloads:
        return Status.NOTHING_TO_PLACE
    if not placed and proven:
        return Status.NOTHING_PLACED
    return Status.OPTIMAL if proven else Status.FEASIBLE


def _assignment(table: Table, place: tuple[int, int], count: int) -> Assignment:
    row, column = place
    return Assignment(
        workload=table.workloads[row].name,
        cluster=table.clusters[table.cluster_of[column]],
        configuration=table.configurations[column].name,
        device=table.configurations[column].device,
        score=table.score(int(table.value[place])),
        replicas=count,
        kept=min(count, table.stay.get(place, 0)),
        request=dict(sorted(table.workloads[row].request.items())),
    )


def _unknown_places(table: Table) -> tuple[UnknownPlace, ...]:
    columns: dict[str, list[int]] = {}
    for column, cluster in enumerate(table.cluster_of):
        columns.setdefault(table.clusters[cluster], []).append(column)
    found = {
        UnknownPlace(workload.name, place.cluster, table.configurations[column].device)
        for row, workload in enumerate(table.workloads)
        for place in workload.current
        for column in columns.get(place.cluster, ())
        if place.device in (None, table.configurations[column].device)
        and REFUSALS[table.refused[row, column]] in (Reason.NO_SCORE, Reason.EXPIRED)
    }
    return tuple(sorted(found, key=lambda one: (one.workload, one.cluster, one.device)))


def _configurations(table: Table, placed: dict[tuple[int, int], int]) -> tuple[Chosen, ...]:
    used: dict[int, dict[str, int]] = {}
    for (row, column), count in sorted(placed.items()):
        amounts = used.setdefault(column, {})
        for kind, amount in sorted(table.workloads[row].request.items()):
            amounts[kind] = amounts.get(kind, 0) + amount * count
    return tuple(
        Chosen(
            cluster=table.clusters[table.cluster_of[column]],
            configuration=table.configurations[column].name,
            device=table.configurations[column].device,
            supply=dict(sorted(table.configurations[column].supply.items())),
            used=used[column],
        )
        for column in sorted(used)
    )
