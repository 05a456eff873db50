"""Searches for the plan with the greatest sum, with a proven gap.

An item is a number of replicas of a workload in a configuration of a cluster (see `dsf.optimizer.table`). The linear
relaxation gives an upper bound, and excludes items that cannot be part of a better plan than the best known plan. The
solver first gets the most promising items (the core), then all that are still possible. If it ends by itself, its plan
is the best. If the core alone is too large for the solver, the plan is improved part by part until the time is over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dsf.optimizer.bounds import Relaxation, make_trivial_bound, select_top_items, solve_relaxation
from dsf.optimizer.greedy import is_allowed, place_greedily
from dsf.optimizer.neighbourhood import NeighbourhoodSearch
from dsf.optimizer.program import Clock, IntegerProgram
from dsf.optimizer.table import Table
from dsf.optimizer.values import IntArray

#: Maximum items with which the relaxation starts from all items. With more items, it starts from the best items of each
#: workload (row) and configuration (column).
_MAX_RELAXED_ITEMS = 20_000
_PER_ROW = 10
_PER_COLUMN = 3
#: Items per workload in the core, and the maximum items of a core that the solver gets as a whole.
_CORE_ITEMS_PER_ROW = 20
_MAX_CORE_ITEMS = 6_000


@dataclass
class Incumbent:
    """The best plan so far, as replicas per item of the table."""

    counts: IntArray
    value: int
    #: Upper bound of the value of all plans, in units.
    bound: int
    relaxation: Relaxation

    def is_within_gap(self, gap: float) -> bool:
        """Return True if the plan is proven to be within this share of the best one."""
        return self.bound - self.value <= gap * self.bound

    def list_useful_items(self) -> IntArray:
        """Return the numbers of the items that a better plan may use."""
        return self.relaxation.list_useful_items(self.value + 1)


def search(table: Table, gap: float, clock: Clock) -> Incumbent:
    """Return the best plan that is found in time, or the first plan within `gap` of the best.

    There is always a plan, because a plan may be empty.
    """
    items = table.items
    relaxation = make_trivial_bound(table)
    incumbent = Incumbent(np.zeros(len(items), dtype=np.int64), 0, _round_down(relaxation.bound), relaxation)
    if not len(items):
        return incumbent
    if items.is_staying.any():
        # Start with the current assignments, because the plan with fewer changes wins among equal plans.
        _offer(
            table, incumbent, place_greedily(table, items.value + items.is_staying * int(items.value.max() + 1), clock)
        )
    _offer(table, incumbent, place_greedily(table, items.value, clock))
    _relax(table, incumbent, clock)
    if incumbent.is_within_gap(gap):
        return incumbent
    core = _select_core(table, incumbent)
    # Solve more items only after the core was solved in time, because they take longer.
    if len(core) <= _MAX_CORE_ITEMS and _solve(table, incumbent, core, gap, clock) and not incumbent.is_within_gap(gap):
        _solve(table, incumbent, incumbent.list_useful_items(), gap, clock)
    if not incumbent.is_within_gap(gap):
        neighbourhood_search = NeighbourhoodSearch(table, incumbent.relaxation, incumbent.counts)
        neighbourhood_search.improve(clock)
        _offer(table, incumbent, neighbourhood_search.counts)
    return incumbent


def _select_core(table: Table, incumbent: Incumbent) -> IntArray:
    """Return the most promising items of each row, and those of the best plan so far."""
    useful_items = incumbent.list_useful_items()
    promising = select_top_items(
        table.items.row[useful_items], incumbent.relaxation.reduced[useful_items], _CORE_ITEMS_PER_ROW, useful_items
    )
    return np.union1d(promising, np.flatnonzero(incumbent.counts))


def _relax(table: Table, incumbent: Incumbent, clock: Clock) -> None:
    """Find a good bound, and a plan that follows its prices."""
    items = table.items
    start = np.arange(len(items))
    if len(items) > _MAX_RELAXED_ITEMS:
        best_items = select_top_items(items.row, items.value, _PER_ROW, start)
        # Include items of each configuration, because a configuration without items would look worthless.
        best_items = np.union1d(best_items, select_top_items(items.column, items.value, _PER_COLUMN, start))
        start = np.union1d(np.union1d(best_items, np.flatnonzero(items.is_staying)), np.flatnonzero(incumbent.counts))
    incumbent.relaxation = solve_relaxation(table, start, _PER_ROW, clock, share=0.5)
    incumbent.bound = min(incumbent.bound, _round_down(incumbent.relaxation.bound))
    _offer(table, incumbent, place_greedily(table, incumbent.relaxation.reduced, clock))


def _solve(table: Table, incumbent: Incumbent, numbers: IntArray, gap: float, clock: Clock) -> bool:
    """Solve the program over the items with these numbers (ascending), and update the incumbent's plan and bound.

    Returns True if the solver ended in time.
    """
    items = table.items.subset(numbers)
    result = IntegerProgram(table, items).maximise(items.value, seconds=clock.remaining * 0.5, gap=gap)
    if result.counts is not None:
        counts = np.zeros(len(table.items), dtype=np.int64)
        counts[numbers] = result.counts
        _offer(table, incumbent, counts)
    is_outside = np.ones(len(table.items), dtype=bool)
    is_outside[numbers] = False
    bound = max(
        _round_down(result.bound), _round_down(incumbent.relaxation.compute_bound_with(is_outside)), incumbent.value
    )
    incumbent.bound = min(incumbent.bound, bound)
    return result.is_finished


def _offer(table: Table, incumbent: Incumbent, counts: IntArray) -> None:
    """Make this plan the incumbent's if it is better and valid."""
    value = int(counts @ table.items.value)
    if value > incumbent.value and is_allowed(table, counts):
        incumbent.counts, incumbent.value = counts, value


def _round_down(bound: float) -> int:
    """Return the greatest whole number that a bound allows. The solver's bound is accurate to 1e-6."""
    if not math.isfinite(bound):
        return np.iinfo(np.int64).max
    return math.floor(bound + 1e-6 * max(1.0, abs(bound) * 1e-3))
