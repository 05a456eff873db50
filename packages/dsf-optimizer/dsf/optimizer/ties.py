"""Selects one of all plans with the greatest sum: more replicas placed, then more that stay, then by names.

By names means: with workloads in the order of their names, and options in the order of cluster and configuration name,
as many replicas of the first workload as possible on its first option, then on its second one, and so on. That leaves
exactly one plan. Each step is a program of its own in which what the steps before have gained must not be lost.

A step that cannot be finished is undone as a whole, so that the plan does not depend on how fast the machine is.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dsf.optimizer.greedy import is_allowed
from dsf.optimizer.program import Clock, Hold, IntegerProgram
from dsf.optimizer.search import Incumbent
from dsf.optimizer.table import Table
from dsf.optimizer.values import IntArray

#: How many answers one step by names may tell apart: more would need coefficients beyond the solver's accuracy.
_ANSWERS: Final = 50_000


def break_ties(table: Table, incumbent: Incumbent, clock: Clock) -> tuple[IntArray, bool]:
    """Replicas per item of the plan that wins among those as good as `incumbent`, and whether all steps were finished.

    Without a full proof that `incumbent` is the best plan, the result is still at least as good.
    """
    if not len(table.items):
        return incumbent.counts, True
    steps = _Steps(table, incumbent, clock)
    exact = steps.run()
    return steps.whole(steps.counts), exact and incumbent.bound == incumbent.value


class _Steps:
    """The steps on the items that a plan of the greatest sum may use."""

    def __init__(self, table: Table, incumbent: Incumbent, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._numbers = np.union1d(incumbent.relaxation.able(incumbent.value), np.flatnonzero(incumbent.counts))
        self._items = table.items.subset(self._numbers)
        self._program = IntegerProgram(table, self._items)
        self.counts = incumbent.counts[self._numbers]
        self._held = [Hold(self._items.value, incumbent.value, incumbent.bound)]
        self._lower = np.zeros_like(self._items.limit)
        self._upper = self._items.limit.copy()
        #: Supply that the decided items leave.
        self._free = table.supply.copy()
        self._work = 0

    def run(self) -> bool:
        """Do all steps; whether each of them was finished."""
        total_replicas = int(self._table.replicas[np.unique(self._items.row)].sum())
        most_kept = int(self._items.limit @ self._items.kept)
        if not (
            self._raise(np.ones_like(self._items.limit), total_replicas) and self._raise(self._items.kept, most_kept)
        ):
            return False
        before = self.counts
        if not self._order_by_names():
            self.counts = before
            return False
        return True

    def whole(self, counts: IntArray) -> IntArray:
        """For all items of the table."""
        whole = np.zeros(len(self._table.items), dtype=np.int64)
        whole[self._numbers] = counts
        return whole

    def _raise(self, weight: IntArray, maximum: int) -> bool:
        """Do a step: make the sum of `weight` greatest (it cannot be more than `maximum`) and hold it from then on."""
        if int(weight @ self.counts) < maximum and not self._maximise(weight):
            return False
        reached = int(weight @ self.counts)
        self._held.append(Hold(weight, reached, reached))
        return True

    def _maximise(self, weight: IntArray) -> bool:
        """Make the sum of `weight` greatest; False and no change when that cannot be finished."""
        answer = self._program.maximise(
            weight, seconds=self._clock.remaining, hold=self._held, lower=self._lower, upper=self._upper
        )
        counts = answer.counts
        if counts is None or not answer.finished or not self._is_valid(counts):
            return False
        if int(weight @ counts) > int(weight @ self.counts):
            self.counts = counts
        return True

    def _is_valid(self, counts: IntArray) -> bool:
        are_constraints_met = all(int(constraint.weight @ counts) >= constraint.minimum for constraint in self._held)
        fixed = bool(((counts >= self._lower) & (counts <= self._upper)).all())
        return are_constraints_met and fixed and is_allowed(self._table, self.whole(counts))

    def _order_by_names(self) -> bool:
        batch: list[IntArray] = []
        answers = 1
        for numbers in self._list_decisions():
            if batch and answers * (self._compute_digits(numbers)[1] + 1) > _ANSWERS:
                if not self._settle(batch):
                    return False
                batch, answers = [], 1
            values, best_value = self._compute_digits(numbers)
            if not batch and int(values @ self.counts[numbers]) == best_value:
                self._fix(numbers)
                continue
            batch.append(numbers)
            answers *= best_value + 1
        return not batch or self._settle(batch)

    def _list_decisions(self) -> list[IntArray]:
        """Items that are decided together, in the order in which they are."""
        items = self._items
        alone = self._table.replicas[items.row] == 1
        same = (np.diff(items.row) == 0) & (alone[1:] | (np.diff(items.column) == 0))
        return np.split(np.arange(len(items)), np.flatnonzero(~same) + 1)

    def _compute_digits(self, numbers: IntArray) -> tuple[IntArray, int]:
        """How much a replica on each of these items adds, and the greatest sum of that; the greatest wins.

        For a single replica: the earlier an option that is still possible, the more. For several: one for each.
        """
        replicas = int(self._table.replicas[self._items.row[numbers[0]]])
        upper = self._upper[numbers]
        if replicas > 1:
            return np.ones_like(upper), min(int(upper.sum()), replicas)
        possible = upper > 0
        values = np.where(possible, np.cumsum(possible[::-1])[::-1], 0)
        return values, int(values.max())

    def _settle(self, batch: list[IntArray]) -> bool:
        """Make the digits of a batch greatest, the first one first, and fix its items."""
        self._work += len(self._items)
        # Programs solved x items: what is more takes long and few would miss it.
        if self._work > 40_000:
            return False
        weight = np.zeros_like(self._items.limit)
        scale = 1
        for numbers in reversed(batch):
            values, best_value = self._compute_digits(numbers)
            weight[numbers] = values * scale
            scale *= best_value + 1
        if not self._maximise(weight):
            return False
        for numbers in batch:
            self._fix(numbers)
        return True

    def _fix(self, numbers: IntArray) -> None:
        """Decide on these items, and rule out what is no longer possible for the others."""
        items, table = self._items, self._table
        counts = self.counts[numbers]
        self._lower[numbers] = self._upper[numbers] = counts
        for number in numbers[counts > 0]:
            column = items.column[number]
            self._free[column] -= self.counts[number] * table.request[items.row[number]]
            later = np.arange(len(items)) > numbers[-1]
            later &= table.cluster_of[items.column] == table.cluster_of[column]
            self._upper[later & (items.column != column)] = 0
            for other in np.flatnonzero(later & (items.column == column)):
                for amount, free in zip(table.request[items.row[other]], self._free[column], strict=True):
                    if amount:
                        self._upper[other] = min(self._upper[other], free // amount)
