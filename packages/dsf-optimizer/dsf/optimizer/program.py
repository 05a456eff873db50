"""The integer program over a set of items, and its linear relaxation; HiGHS through scipy.

    maximise    sum value[i] x[i]
    one row     sum of x[i] of a workload                 <= its replicas
    one cluster sum of y[k] of a cluster                  <= 1
    capacity    sum request[i, kind] x[i] in column k     <= supply[k, kind] y[k]
    link        x[i] <= limit[i] y[k]
    x whole numbers from 0 to limit, y 0 or 1

The links follow from the rest for whole numbers; they make the relaxation, and so the bound, much tighter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import block_array, csr_array, diags_array, eye_array

from dsf.optimizer.table import Table, TableItems
from dsf.optimizer.values import IntArray

FloatArray = npt.NDArray[np.float64]

#: Below this many seconds a search is not worth starting.
MIN_SECONDS = 0.01


class Clock:
    """A deadline on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._start = time.monotonic()
        self._end = self._start + seconds

    @property
    def left(self) -> float:
        """Seconds to the deadline, 0 when it has passed."""
        return max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def over(self) -> bool:
        """Whether nothing more can be started."""
        return self.left < MIN_SECONDS


@dataclass(frozen=True)
class Hold:
    """A sum over the items that must not fall below `least`."""

    weight: IntArray
    least: int
    #: The sum cannot be more. The solver gets this bound, so that it need not prove it again.
    most: float = math.inf


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    #: Replicas per item; None when nothing was found in time.
    counts: IntArray | None
    #: No choice of these items has a greater sum.
    bound: float
    #: Whether the search ended by itself, not by the clock.
    finished: bool


@dataclass(frozen=True)
class Prices:
    """Dual values, none below zero: of a replica of a row, a cluster, a unit of a kind in a column, and the links."""

    row: FloatArray
    cluster: FloatArray
    amount: FloatArray
    link: FloatArray


class IntegerProgram:
    """The program over `items` of a table; built once, solved with several objectives."""

    def __init__(self, table: Table, items: TableItems) -> None:
        self._table = table
        self.items = items
        if not len(items):
            return
        #: Columns of the table that have a variable, and the variable's place among them.
        self.columns, self._place = np.unique(items.column, return_inverse=True)
        self._rows, row_place = np.unique(items.row, return_inverse=True)
        self._clusters, cluster_place = np.unique(table.cluster_of[self.columns], return_inverse=True)
        count, chosen = len(items), len(self.columns)
        capacity = [
            [
                _of(self._place, table.request[items.row, kind]),
                -diags_array(table.supply[self.columns, kind].astype(float)),
            ]
            for kind in range(len(table.kinds))
        ]
        self._matrix = block_array(
            [
                [_of(row_place, np.ones(count)), None],
                [None, _of(cluster_place, np.ones(chosen))],
                *capacity,
                [eye_array(count), -_of(self._place, items.limit).T],
            ],
            format="csr",
        )
        self._matrix.eliminate_zeros()
        most = [table.replicas[self._rows], np.ones(len(self._clusters)), np.zeros(chosen * len(capacity) + count)]
        self._bound = np.concatenate(most)

    def maximise(
        self,
        weight: IntArray,
        *,
        seconds: float,
        gap: float = 0.0,
        hold: Sequence[Hold] = (),
        lower: IntArray | None = None,
        upper: IntArray | None = None,
    ) -> SearchResult:
        """The greatest sum of `weight` x replicas. `lower` and `upper` are bounds of the replicas per item."""
        count = len(self.items)
        if count == 0:
            return SearchResult(np.zeros(0, dtype=np.int64), 0.0, True)
        if seconds < MIN_SECONDS:
            return SearchResult(None, math.inf, False)
        chosen = len(self.columns)
        constraints = [LinearConstraint(self._matrix, -np.inf, self._bound)]
        for constraint in hold:
            row = csr_array(np.concatenate([constraint.weight, np.zeros(chosen)])[None, :].astype(float))
            # The sum is a whole number; the half is room for the solver's tolerance.
            constraints.append(LinearConstraint(row, constraint.least - 0.5, constraint.most + 0.5))
        low = np.zeros(count) if lower is None else lower
        high = self.items.limit if upper is None else upper
        result = milp(
            c=-np.concatenate([weight, np.zeros(chosen)]).astype(float),
            constraints=constraints,
            integrality=np.ones(count + chosen),
            bounds=Bounds(np.concatenate([low, np.zeros(chosen)]), np.concatenate([high, np.ones(chosen)])),
            options={"time_limit": seconds, "mip_rel_gap": gap},
        )
        bound = math.inf if result.mip_dual_bound is None else -float(result.mip_dual_bound)
        counts = None if result.x is None else np.rint(result.x[:count]).astype(np.int64)
        return SearchResult(counts, bound if math.isfinite(bound) else math.inf, result.status == 0)

    def prices(self, seconds: float, method: str) -> Prices | None:
        """The dual values of the linear relaxation, by a method of scipy; None when it was not solved in time."""
        table, items = self._table, self.items
        count, chosen = len(items), len(self.columns)
        if count == 0 or seconds < MIN_SECONDS:
            return None
        high = np.concatenate([items.limit, np.ones(chosen)]).astype(float)
        result = linprog(
            -np.concatenate([items.value, np.zeros(chosen)]).astype(float),
            A_ub=self._matrix,
            b_ub=self._bound,
            bounds=np.column_stack([np.zeros(count + chosen), high]),
            method=method,
            options={"time_limit": seconds},
        )
        if result.status != 0:
            return None
        dual = np.maximum(-result.ineqlin.marginals, 0.0)
        parts = np.split(dual, np.cumsum([len(self._rows), len(self._clusters), chosen * len(table.kinds)]))
        row, cluster = np.zeros(len(table.workloads)), np.zeros(len(table.clusters))
        amount = np.zeros((len(table.configurations), len(table.kinds)))
        row[self._rows], cluster[self._clusters] = parts[0], parts[1]
        amount[self.columns] = parts[2].reshape(len(table.kinds), chosen).T
        return Prices(row, cluster, amount, parts[3])


def _of(place: IntArray, data: npt.NDArray[np.generic]) -> csr_array:
    """A matrix with one entry in each column: `data` in the row `place`."""
    return csr_array((data.astype(float), (place, np.arange(len(place)))))
