"""Search for the plan with the greatest sum, with a proven gap.

The linear relaxation gives a bound, and tells which items can be part of a plan better than the one known. The solver
gets the most promising of them (the core), then all that are still possible, which makes the response the best there
is. Where the core alone is too large for it, a plan is made better part by part until the time is over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dsf.optimizer.bounds import Relaxation, make_trivial_bound, select_top_items, solve_relaxation
from dsf.optimizer.greedy import is_allowed, place_greedily
from dsf.optimizer.neighbourhood import Neighbourhoods
from dsf.optimizer.program import Clock, IntegerProgram
from dsf.optimizer.table import Table
from dsf.optimizer.values import IntArray

#: Up to this many items the relaxation starts from all of them, else from this many of each workload and configuration.
_MEDIUM = 20_000
_PER_ROW = 10
_PER_COLUMN = 3
#: Items per workload in the core, and most items of a core that is given to the solver whole.
_CORE = 20
_LARGEST = 6_000


@dataclass
class Incumbent:
    """The best plan so far, as replicas per item of the table."""

    counts: IntArray
    value: int
    #: Units; no plan has a greater value.
    bound: int
    relaxation: Relaxation

    def good(self, gap: float) -> bool:
        """Whether the plan is proven to be within this share of the best one."""
        return self.bound - self.value <= gap * self.bound

    def able(self) -> IntArray:
        """Numbers of the items that a better plan may use."""
        return self.relaxation.able(self.value + 1)


def search(table: Table, gap: float, clock: Clock) -> Incumbent:
    """Return the best plan that was found in time, or the first within `gap` of the best. An empty plan is always
    possible."""
    items = table.items
    relaxation = make_trivial_bound(table)
    incumbent = Incumbent(np.zeros(len(items), dtype=np.int64), 0, _round_down(relaxation.bound), relaxation)
    if not len(items):
        return incumbent
    if items.kept.any():
        # First what is there now: of equal plans the one that changes least.
        _offer(table, incumbent, place_greedily(table, items.value + items.kept * int(items.value.max() + 1), clock))
    _offer(table, incumbent, place_greedily(table, items.value, clock))
    _relax(table, incumbent, clock)
    if incumbent.good(gap):
        return incumbent
    core = _select_core(table, incumbent)
    # If the solver did not finish the core, it would not begin with more.
    if len(core) <= _LARGEST and _solve(table, incumbent, core, gap, clock) and not incumbent.good(gap):
        _solve(table, incumbent, incumbent.able(), gap, clock)
    if not incumbent.good(gap):
        parts = Neighbourhoods(table, incumbent.relaxation, incumbent.counts)
        parts.run(clock)
        _offer(table, incumbent, parts.counts)
    return incumbent


def _select_core(table: Table, incumbent: Incumbent) -> IntArray:
    """Return the most promising items of each row, and those of the plan so far."""
    able = incumbent.able()
    promising = select_top_items(table.items.row[able], incumbent.relaxation.reduced[able], _CORE, able)
    return np.union1d(promising, np.flatnonzero(incumbent.counts))


def _relax(table: Table, incumbent: Incumbent, clock: Clock) -> None:
    """Find a good bound, and a plan that follows its prices."""
    items = table.items
    start = np.arange(len(items))
    if len(items) > _MEDIUM:
        best = select_top_items(items.row, items.value, _PER_ROW, start)
        # Without any item a configuration would look as if it had nothing to give.
        best = np.union1d(best, select_top_items(items.column, items.value, _PER_COLUMN, start))
        start = np.union1d(np.union1d(best, np.flatnonzero(items.kept)), np.flatnonzero(incumbent.counts))
    incumbent.relaxation = solve_relaxation(table, start, _PER_ROW, clock, share=0.5)
    incumbent.bound = min(incumbent.bound, _round_down(incumbent.relaxation.bound))
    _offer(table, incumbent, place_greedily(table, incumbent.relaxation.reduced, clock))


def _solve(table: Table, incumbent: Incumbent, numbers: IntArray, gap: float, clock: Clock) -> bool:
    """Solve the program of these items, in order; keep its plan when it is better, and its bound. Whether it ended."""
    items = table.items.subset(numbers)
    answer = IntegerProgram(table, items).maximise(items.value, seconds=clock.remaining * 0.5, gap=gap)
    if answer.counts is not None:
        counts = np.zeros(len(table.items), dtype=np.int64)
        counts[numbers] = answer.counts
        _offer(table, incumbent, counts)
    is_outside = np.ones(len(table.items), dtype=bool)
    is_outside[numbers] = False
    bound = max(_round_down(answer.bound), _round_down(incumbent.relaxation.bound_of(is_outside)), incumbent.value)
    incumbent.bound = min(incumbent.bound, bound)
    return answer.finished


def _offer(table: Table, incumbent: Incumbent, counts: IntArray) -> None:
    value = int(counts @ table.items.value)
    if value > incumbent.value and is_allowed(table, counts):
        incumbent.counts, incumbent.value = counts, value


def _round_down(bound: float) -> int:
    """Return the greatest value that a bound leaves, values being whole numbers.

    The solver's bound is accurate to 1e-6.
    """
    if not math.isfinite(bound):
        return np.iinfo(np.int64).max
    return math.floor(bound + 1e-6 * max(1.0, abs(bound) * 1e-3))
