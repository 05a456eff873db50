"""The integer program over a set of items, and its linear relaxation, which HiGHS solves.

x[i] is the number of replicas on item i, and y[k] is 1 if a cluster has the configuration of column k:

    maximise    sum value[i] x[i]
    row         sum of x[i] of a workload                 <= its replicas
    cluster     sum of y[k] of a cluster                  <= 1
    capacity    sum request[i, kind] x[i] in column k     <= supply[k, kind] y[k]
    link        x[i] <= limit[i] y[k]
    x whole numbers from 0 to limit, y 0 or 1

For whole numbers, the other constraints imply the links. The links make the relaxation, and thus the bound, much
tighter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import highspy
import numpy as np
import numpy.typing as npt

from dsf.optimizer.table import Table, TableItems
from dsf.optimizer.values import IntArray

FloatArray = npt.NDArray[np.float64]
#: Entries of a matrix: their rows, columns and values.
_Entries = tuple[npt.NDArray[np.signedinteger], npt.NDArray[np.signedinteger], npt.NDArray[np.number]]

#: Minimum seconds that are worth a search.
MIN_SECONDS = 0.01


class Clock:
    """A deadline on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._start = time.monotonic()
        self._end = self._start + seconds

    @property
    def remaining(self) -> float:
        """Seconds to the deadline; 0 after it."""
        return max(0.0, self._end - time.monotonic())

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def is_over(self) -> bool:
        """True if too little time remains for another search."""
        return self.remaining < MIN_SECONDS


@dataclass(frozen=True)
class SumConstraint:
    """A weighted sum over the items that must not fall below `minimum`."""

    weight: IntArray
    minimum: int
    #: Known upper bound of the sum, which the solver then does not have to prove.
    maximum: float = math.inf


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    #: Replicas per item; None if no plan was found in time.
    counts: IntArray | None
    #: Upper bound of the sum of any choice of these items.
    bound: float
    #: True if the search ended by itself, False if the time ran out.
    is_finished: bool


@dataclass(frozen=True)
class Prices:
    """Dual values of the constraints, at least zero."""

    #: Value of a replica, by row.
    row: FloatArray
    #: Value of the configuration constraint, by cluster.
    cluster: FloatArray
    #: Value of one unit of a resource, by column and kind.
    amount: FloatArray
    #: Values of the link constraints, by item.
    link: FloatArray


class IntegerProgram:
    """The program over `items` of a table, which is built once and solved with several objectives."""

    def __init__(self, table: Table, items: TableItems) -> None:
        self._table = table
        self.items = items
        if not len(items):
            return
        #: Columns of the table with a variable, and the index of each item's column among them.
        self.columns, self._column_index = np.unique(items.column, return_inverse=True)
        self._rows, row_index = np.unique(items.row, return_inverse=True)
        self._clusters, cluster_index = np.unique(table.cluster_of[self.columns], return_inverse=True)
        count, column_count, kind_count = len(items), len(self.columns), len(table.kinds)
        variables, column_variables = np.arange(count), count + np.arange(column_count)
        first_capacity_row = len(self._rows) + len(self._clusters)
        first_link_row = first_capacity_row + kind_count * column_count
        entries: list[_Entries] = [
            (row_index, variables, np.ones(count)),
            (len(self._rows) + cluster_index, column_variables, np.ones(column_count)),
        ]
        for kind in range(kind_count):
            first_row = first_capacity_row + kind * column_count
            entries += [
                (first_row + self._column_index, variables, table.request[items.row, kind]),
                (first_row + np.arange(column_count), column_variables, -table.supply[self.columns, kind]),
            ]
        entries += [
            (first_link_row + variables, variables, np.ones(count)),
            (first_link_row + variables, count + self._column_index, -items.limit),
        ]
        self._matrix = _RowMatrix.of_entries(entries, first_link_row + count)
        self._bound = np.concatenate(
            [
                table.replicas[self._rows],
                np.ones(len(self._clusters)),
                np.zeros(kind_count * column_count + count),
            ]
        ).astype(float)

    def maximise(
        self,
        weight: IntArray,
        *,
        seconds: float,
        gap: float = 0.0,
        constraints: Sequence[SumConstraint] = (),
        lower: IntArray | None = None,
        upper: IntArray | None = None,
    ) -> SearchResult:
        """Return the replicas per item with the greatest sum of `weight` x replicas.

        `seconds` is the time limit, `gap` the accepted share below the best sum. `lower` and `upper` are bounds of the
        replicas per item.
        """
        count = len(self.items)
        if count == 0:
            return SearchResult(np.zeros(0, dtype=np.int64), 0.0, True)
        if seconds < MIN_SECONDS:
            return SearchResult(None, math.inf, False)
        column_count = len(self.columns)
        low = np.zeros(count) if lower is None else lower
        high = self.items.limit if upper is None else upper
        problem = self._make_problem(
            weight,
            low=np.concatenate([low, np.zeros(column_count)]),
            high=np.concatenate([high, np.ones(column_count)]),
            constraints=constraints,
        )
        problem.integrality_ = [highspy.HighsVarType.kInteger] * (count + column_count)
        solver = _run_solver(problem, seconds, {"mip_rel_gap": gap})
        info, solution = solver.getInfo(), solver.getSolution()
        is_optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
        has_counts = info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible)
        counts = np.rint(np.asarray(solution.col_value)[:count]).astype(np.int64) if has_counts else None
        bound = -info.mip_dual_bound
        return SearchResult(counts, bound if math.isfinite(bound) else math.inf, is_optimal)

    def compute_prices(self, seconds: float, solver: Literal["choose", "ipm"]) -> Prices | None:
        """Return the dual values of the linear relaxation; None if HiGHS did not solve it in time."""
        table, items = self._table, self.items
        count, column_count = len(items), len(self.columns)
        if count == 0 or seconds < MIN_SECONDS:
            return None
        problem = self._make_problem(
            items.value,
            low=np.zeros(count + column_count),
            high=np.concatenate([items.limit, np.ones(column_count)]),
        )
        relaxation = _run_solver(problem, seconds, {"solver": solver})
        if relaxation.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        dual = np.maximum(-np.asarray(relaxation.getSolution().row_dual), 0.0)
        parts = np.split(dual, np.cumsum([len(self._rows), len(self._clusters), column_count * len(table.kinds)]))
        row, cluster = np.zeros(len(table.workloads)), np.zeros(len(table.clusters))
        amount = np.zeros((len(table.configurations), len(table.kinds)))
        row[self._rows], cluster[self._clusters] = parts[0], parts[1]
        amount[self.columns] = parts[2].reshape(len(table.kinds), column_count).T
        return Prices(row, cluster, amount, parts[3])

    def _make_problem(
        self, weight: IntArray, *, low: FloatArray, high: FloatArray, constraints: Sequence[SumConstraint] = ()
    ) -> highspy.HighsLp:
        """Return the minimisation of minus the sum of `weight` x replicas, with bounds of all variables."""
        count, column_count = len(self.items), len(self.columns)
        matrix = self._matrix
        for constraint in constraints:
            matrix = matrix.with_row(constraint.weight.astype(float))
        problem = highspy.HighsLp()
        problem.num_col_, problem.num_row_ = count + column_count, len(matrix.start) - 1
        problem.col_cost_ = -np.concatenate([weight, np.zeros(column_count)]).astype(float)
        problem.col_lower_, problem.col_upper_ = low.astype(float), high.astype(float)
        # Widen the bounds of a sum, a whole number, by a half, which leaves room for the solver's tolerance.
        problem.row_lower_ = np.concatenate(
            [np.full(len(self._bound), -math.inf), [constraint.minimum - 0.5 for constraint in constraints]]
        )
        problem.row_upper_ = np.concatenate([self._bound, [constraint.maximum + 0.5 for constraint in constraints]])
        problem.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        problem.a_matrix_.start_ = matrix.start
        problem.a_matrix_.index_ = matrix.index
        problem.a_matrix_.value_ = matrix.value
        return problem


@dataclass(frozen=True)
class _RowMatrix:
    """A sparse matrix by rows: row `r` has the entries from `start[r]` to `start[r + 1]`."""

    start: npt.NDArray[np.int32]
    index: npt.NDArray[np.int32]
    value: FloatArray

    @classmethod
    def of_entries(cls, entries: Sequence[_Entries], row_count: int) -> _RowMatrix:
        """Return the matrix of these groups of (rows, columns, values), without zeros."""
        rows, columns = (np.concatenate([group[axis] for group in entries]) for axis in (0, 1))
        values = np.concatenate([group[2].astype(float) for group in entries])
        order = np.lexsort((columns, rows))
        order = order[values[order] != 0]
        start = np.zeros(row_count + 1, dtype=np.int32)
        start[1:] = np.cumsum(np.bincount(rows[order], minlength=row_count))
        return cls(start, columns[order].astype(np.int32), values[order])

    def with_row(self, values: FloatArray) -> _RowMatrix:
        """Return the matrix with one more row, dense from the first column on."""
        columns = np.flatnonzero(values)
        return _RowMatrix(
            np.append(self.start, self.start[-1] + len(columns)).astype(np.int32),
            np.append(self.index, columns).astype(np.int32),
            np.append(self.value, values[columns]),
        )


def _run_solver(problem: highspy.HighsLp, seconds: float, options: Mapping[str, float | str]) -> highspy.Highs:
    """Return the solver after it has run for at most `seconds`, in this thread alone."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    for name, value in {"time_limit": seconds, "threads": 1, "parallel": "off", **options}.items():
        solver.setOptionValue(name, value)
    solver.passModel(problem)
    solver.run()
    return solver
