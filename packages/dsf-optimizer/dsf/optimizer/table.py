"""The options of a problem in arrays, sorted by name so that the order of the input has no effect.

Rows are workloads by name; columns are configurations by (cluster, configuration) name. An *item* is one variable of
the program: the replicas of a row in a column that stay there (`is_staying`), or those that move there. Staying is
never worse than moving to the same column, so that the sum of both variables describes the option without a further
constraint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsf.optimizer.model import Configuration, PlanInput, Workload
from dsf.optimizer.values import EXPIRED, MISSING, CodeArray, IntArray, Values, compute_values
from dsf.optimizer.views import Reason

#: Codes of `Table.refusal_codes`; 0 is usable.
REFUSALS: tuple[Reason | None, ...] = (None, Reason.NO_SCORE, Reason.EXPIRED, Reason.TOO_LARGE, Reason.NEGATIVE)


@dataclass(frozen=True)
class TableItems:
    """The items as arrays of equal length, sorted by row and column; kept replicas come last."""

    row: IntArray
    column: IntArray
    #: Value of one replica in units, including the bonus for staying.
    value: IntArray
    #: Maximum replicas.
    limit: IntArray
    #: 1 for replicas that stay, otherwise 0.
    is_staying: IntArray

    def __len__(self) -> int:
        return len(self.row)

    def subset(self, numbers: IntArray) -> TableItems:
        """Return the items with these numbers, which are in ascending order."""
        return TableItems(
            self.row[numbers], self.column[numbers], self.value[numbers], self.limit[numbers], self.is_staying[numbers]
        )


@dataclass(frozen=True)
class Table:
    """A problem as arrays."""

    workloads: tuple[Workload, ...]
    clusters: tuple[str, ...]
    configurations: tuple[Configuration, ...]
    kinds: tuple[str, ...]
    #: Index of the cluster of each column.
    cluster_of: IntArray
    #: Replicas of each row.
    replicas: IntArray
    #: Amounts as rows x kinds, and as columns x kinds, in the greatest unit of which every request is a multiple.
    request: IntArray
    supply: IntArray
    #: Rows x columns: value of one replica in units, without the bonus for staying.
    value: IntArray
    #: Rows x columns: maximum replicas.
    limit: IntArray
    #: Rows x columns: index in REFUSALS.
    refusal_codes: CodeArray
    #: Rows x columns: replicas that can stay.
    stay_limit: IntArray
    #: (row, column, replicas) of the current assignments.
    current: list[tuple[int, int, int]]
    items: TableItems
    scores: Values

    def score(self, units: float) -> float:
        """Return a value in units as a score."""
        return units / self.scores.per_score


def make_table(problem: PlanInput) -> Table:
    """Return the arrays of a problem. Raises ManifestError for scores that cannot be summed exactly."""
    workloads = tuple(sorted(problem.workloads, key=lambda workload: workload.name))
    clusters = tuple(sorted(problem.clusters, key=lambda cluster: cluster.name))
    columns = [
        (index, configuration)
        for index, cluster in enumerate(clusters)
        for configuration in sorted(cluster.configurations, key=lambda entry: entry.name)
    ]
    configurations = tuple(configuration for _, configuration in columns)
    kinds = tuple(sorted({kind for workload in workloads for kind in workload.request}))
    scores = compute_values(problem, clusters, columns)
    request = _make_amounts([workload.request for workload in workloads], kinds)
    supply = _make_amounts([configuration.supply for configuration in configurations], kinds)
    request, supply = _coarsen(request, supply)
    replicas = np.array([workload.replicas for workload in workloads], dtype=np.int64)
    app_row = {app: index for index, app in enumerate(scores.apps)}
    apps = np.array([app_row[workload.app] for workload in workloads], dtype=np.int64)

    limit = _compute_limits(workloads, request, supply)
    value = scores.value[apps] if len(apps) else np.zeros((0, len(columns)), dtype=np.int64)
    state = scores.state[apps] if len(apps) else np.zeros((0, len(columns)), dtype=np.uint8)
    current_assignments = _find_assignments(
        workloads, [(clusters[index].name, configuration.device) for index, configuration in columns]
    )
    stay_limit = np.zeros_like(limit)
    for row, column, count in current_assignments:
        stay_limit[row, column] = min(count, limit[row, column])
    # Refuse options that would lower the sum, because a replica can always be left unplaced instead.
    refusal_codes = np.where(value + scores.stay_bonus * (stay_limit > 0) < 0, _get_code(Reason.NEGATIVE), 0).astype(
        np.uint8
    )
    refusal_codes[limit == 0] = _get_code(Reason.TOO_LARGE)
    refusal_codes[state == EXPIRED] = _get_code(Reason.EXPIRED)
    refusal_codes[state == MISSING] = _get_code(Reason.NO_SCORE)
    limit[refusal_codes != 0] = 0
    stay_limit[refusal_codes != 0] = 0
    limit = np.where((stay_limit > 0) & (value < 0), stay_limit, limit)
    return Table(
        workloads=workloads,
        clusters=tuple(cluster.name for cluster in clusters),
        configurations=configurations,
        kinds=kinds,
        cluster_of=np.array([index for index, _ in columns], dtype=np.int64),
        replicas=replicas,
        request=request,
        supply=supply,
        value=value,
        limit=limit,
        refusal_codes=refusal_codes,
        stay_limit=stay_limit,
        current=current_assignments,
        items=_make_items(value, limit, stay_limit, scores.stay_bonus),
        scores=scores,
    )


def _make_amounts(sources: Sequence[Mapping[str, int]], kinds: tuple[str, ...]) -> IntArray:
    rows = [[source.get(kind, 0) for kind in kinds] for source in sources]
    return np.array(rows, dtype=np.int64).reshape(len(sources), len(kinds))


def _coarsen(request: IntArray, supply: IntArray) -> tuple[IntArray, IntArray]:
    """Return amounts in the greatest common unit of each kind, because small coefficients keep the solver exact."""
    unit = np.maximum(np.gcd.reduce(request, axis=0), 1)
    return request // unit, supply // unit


def _compute_limits(workloads: Sequence[Workload], request: IntArray, supply: IntArray) -> IntArray:
    """Return the number of replicas of each row that fit into each column if it is otherwise empty."""
    replica_limits = [min(workload.replicas, workload.per_cluster or workload.replicas) for workload in workloads]
    limit = np.repeat(np.array(replica_limits, dtype=np.int64)[:, None], len(supply), axis=1)
    for kind in range(request.shape[1]):
        requesting_rows = np.flatnonzero(request[:, kind])
        capacity = supply[None, :, kind] // request[requesting_rows, kind, None]
        limit[requesting_rows] = np.minimum(limit[requesting_rows], capacity)
    return limit


def _find_assignments(workloads: Sequence[Workload], columns: Sequence[tuple[str, str]]) -> list[tuple[int, int, int]]:
    """Return the current assignments as (row, column, replicas). `columns` has (cluster, device) pairs."""
    columns_by_cluster: dict[str, list[int]] = {}
    for column, (cluster, _) in enumerate(columns):
        columns_by_cluster.setdefault(cluster, []).append(column)
    return [
        (row, column, assignment.replicas)
        for row, workload in enumerate(workloads)
        for assignment in workload.current
        for column in columns_by_cluster.get(assignment.cluster, ())
        if assignment.device in (None, columns[column][1])
    ]


def _get_code(reason: Reason) -> int:
    return REFUSALS.index(reason)


def _make_items(value: IntArray, limit: IntArray, stay_limit: IntArray, stay_bonus: int) -> TableItems:
    new_items, current_items = np.nonzero(limit - stay_limit), np.nonzero(stay_limit)
    row, column = np.concatenate([new_items, current_items], axis=1)
    is_staying = np.repeat([0, 1], [len(new_items[0]), len(current_items[0])])
    count_limits = np.concatenate([(limit - stay_limit)[new_items], stay_limit[current_items]])
    order = np.lexsort((is_staying, column, row))
    row, column, is_staying = row[order], column[order], is_staying[order]
    return TableItems(row, column, value[row, column] + stay_bonus * is_staying, count_limits[order], is_staying)
