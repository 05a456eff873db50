"""Selects one of all plans with the greatest sum: more replicas placed, then more that stay, then by names.

"By names" sorts workloads by name, and options by cluster and configuration name. It places as many replicas of the
first workload as possible on its first option, then on its second option, and so on, which leaves exactly one plan.
Each step solves a program with the constraint that the sums of the previous steps do not decrease.

A step that cannot be finished is undone as a whole, so that the plan does not depend on how fast the machine is.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dsf.optimizer.greedy import is_allowed
from dsf.optimizer.program import Clock, IntegerProgram, SumConstraint
from dsf.optimizer.search import Incumbent
from dsf.optimizer.table import Table
from dsf.optimizer.values import IntArray

#: Maximum combinations of one step by names: more would need coefficients beyond the solver's accuracy.
_MAX_COMBINATIONS: Final = 50_000


def break_ties(table: Table, incumbent: Incumbent, clock: Clock) -> tuple[IntArray, bool]:
    """Return (replicas per item, True if all ties were broken) of the selected plan among those as good as `incumbent`.

    The plan is at least as good as `incumbent`, even if that is not proven to be the best plan.
    """
    if not len(table.items):
        return incumbent.counts, True
    steps = _Steps(table, incumbent, clock)
    is_finished = steps.run()
    return steps.expand(steps.counts), is_finished and incumbent.bound == incumbent.value


class _Steps:
    """The steps on the items that a plan with the greatest sum may use."""

    def __init__(self, table: Table, incumbent: Incumbent, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._numbers = np.union1d(
            incumbent.relaxation.list_useful_items(incumbent.value), np.flatnonzero(incumbent.counts)
        )
        self._items = table.items.subset(self._numbers)
        self._program = IntegerProgram(table, self._items)
        self.counts = incumbent.counts[self._numbers]
        self._constraints = [SumConstraint(self._items.value, incumbent.value, incumbent.bound)]
        self._lower = np.zeros_like(self._items.limit)
        self._upper = self._items.limit.copy()
        # Supply that remains after the decided items.
        self._free = table.supply.copy()
        # Sum of the items of all solved programs.
        self._work = 0

    def run(self) -> bool:
        """Do all steps. Return True if all of them finished."""
        total_replicas = int(self._table.replicas[np.unique(self._items.row)].sum())
        most_kept = int(self._items.limit @ self._items.is_staying)
        if not (
            self._raise(np.ones_like(self._items.limit), total_replicas)
            and self._raise(self._items.is_staying, most_kept)
        ):
            return False
        counts_before = self.counts
        if not self._order_by_names():
            self.counts = counts_before
            return False
        return True

    def expand(self, counts: IntArray) -> IntArray:
        """Return the counts for all items of the table."""
        all_counts = np.zeros(len(self._table.items), dtype=np.int64)
        all_counts[self._numbers] = counts
        return all_counts

    def _raise(self, weight: IntArray, maximum: int) -> bool:
        """Do a step: maximise the sum of `weight`, and make the result a constraint of the later steps.

        `maximum` is an upper bound of the sum. Returns False if the time ran out.
        """
        if int(weight @ self.counts) < maximum and not self._maximise(weight):
            return False
        maximised_sum = int(weight @ self.counts)
        self._constraints.append(SumConstraint(weight, maximised_sum, maximised_sum))
        return True

    def _maximise(self, weight: IntArray) -> bool:
        """Maximise the sum of `weight`. Return False, without a change, if the solver did not finish."""
        result = self._program.maximise(
            weight, seconds=self._clock.remaining, constraints=self._constraints, lower=self._lower, upper=self._upper
        )
        counts = result.counts
        if counts is None or not result.is_finished or not self._is_valid(counts):
            return False
        if int(weight @ counts) > int(weight @ self.counts):
            self.counts = counts
        return True

    def _is_valid(self, counts: IntArray) -> bool:
        are_constraints_met = all(
            int(constraint.weight @ counts) >= constraint.minimum for constraint in self._constraints
        )
        is_within_bounds = bool(((counts >= self._lower) & (counts <= self._upper)).all())
        return are_constraints_met and is_within_bounds and is_allowed(self._table, self.expand(counts))

    def _order_by_names(self) -> bool:
        """Decide on all items in the order of names. Return False if the time ran out."""
        batch: list[IntArray] = []
        combinations = 1
        for numbers in self._list_decisions():
            if batch and combinations * (self._compute_digits(numbers)[1] + 1) > _MAX_COMBINATIONS:
                if not self._settle(batch):
                    return False
                batch, combinations = [], 1
            values, best_value = self._compute_digits(numbers)
            if not batch and int(values @ self.counts[numbers]) == best_value:
                self._fix(numbers)
                continue
            batch.append(numbers)
            combinations *= best_value + 1
        return not batch or self._settle(batch)

    def _list_decisions(self) -> list[IntArray]:
        """Return groups of items that are decided together, in the order of these decisions."""
        items = self._items
        is_single = self._table.replicas[items.row] == 1
        is_same_decision = (np.diff(items.row) == 0) & (is_single[1:] | (np.diff(items.column) == 0))
        return np.split(np.arange(len(items)), np.flatnonzero(~is_same_decision) + 1)

    def _compute_digits(self, numbers: IntArray) -> tuple[IntArray, int]:
        """Return the digit of a replica on each of these items, and the greatest possible sum of digits.

        The plan with the greatest sum wins. For a single replica, earlier options that are still possible have larger
        digits. For several replicas, each digit is 1.
        """
        replicas = int(self._table.replicas[self._items.row[numbers[0]]])
        upper = self._upper[numbers]
        if replicas > 1:
            return np.ones_like(upper), min(int(upper.sum()), replicas)
        possible = upper > 0
        values = np.where(possible, np.cumsum(possible[::-1])[::-1], 0)
        return values, int(values.max())

    def _settle(self, batch: list[IntArray]) -> bool:
        """Maximise the digits of a batch, first digits first, and fix its items. Return False if it takes too long."""
        self._work += len(self._items)
        # Limit the work, because more would take long and would change few plans.
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
        """Fix the replicas of these items, and exclude later items that are no longer possible."""
        items, table = self._items, self._table
        counts = self.counts[numbers]
        self._lower[numbers] = self._upper[numbers] = counts
        for number in numbers[counts > 0]:
            column = items.column[number]
            self._free[column] -= self.counts[number] * table.request[items.row[number]]
            is_later = np.arange(len(items)) > numbers[-1]
            is_later &= table.cluster_of[items.column] == table.cluster_of[column]
            self._upper[is_later & (items.column != column)] = 0
            for later_item in np.flatnonzero(is_later & (items.column == column)):
                for amount, free_amount in zip(table.request[items.row[later_item]], self._free[column], strict=True):
                    if amount:
                        self._upper[later_item] = min(self._upper[later_item], free_amount // amount)
