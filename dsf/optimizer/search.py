"""The plan with the greatest sum, and a proof of how far from it the best one can be.

A small instance is given to the solver whole. A larger one is first relaxed: its bound tells which items can be part of
a plan better than the one known. That plan is made better part by part, then by solving the most promising items (the
core), and at last by solving every item that is still possible, which makes the answer the best there is. What is too
large for that is made better part by part until the time is over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dsf.optimizer.bounds import Relaxation, price, top, trivial
from dsf.optimizer.heuristic import allowed, current, greedy, improved
from dsf.optimizer.model import Limits
from dsf.optimizer.neighbourhood import Neighbourhoods
from dsf.optimizer.program import Clock, Program
from dsf.optimizer.table import Table
from dsf.optimizer.values import IntArray

#: Instances of at most this many items are solved whole.
_SMALL = 400
#: Up to this many items the relaxation starts from all of them.
_MEDIUM = 20_000
#: Options per workload to start from otherwise.
_TOP_K = 10
#: Items per workload in the core before the whole of what is possible, and the share of the time left that it may use.
_CORE = 12
_CORE_SHARE = 0.3
#: The same for what is possible.
_WHOLE_SHARE = 0.6
#: Most items that are given to the solver at once.
_LARGEST = 60_000
#: Items of each configuration to start from besides.
_PER_COLUMN = 3
#: Share of the time for the relaxation, and of what is left then for improving part by part.
_RELAX_SHARE = 0.5
_PARTS_SHARE = 0.4
#: Share of the time that is kept for ties.
_TIE_SHARE = 0.2


@dataclass
class Found:
    """The best plan so far, as replicas per item of the table."""

    counts: IntArray
    value: int
    #: Units; no plan has a greater value.
    bound: int
    relaxation: Relaxation

    def good(self, gap: float) -> bool:
        """Whether the plan is proven to be within this share of the best one."""
        return self.bound - self.value <= gap * self.bound


class Search:
    """One search; `run` does it."""

    def __init__(self, table: Table, limits: Limits, clock: Clock) -> None:
        self._table = table
        self._limits = limits
        self._clock = clock
        self._everything = np.arange(len(table.items))
        nothing = np.zeros(len(table.items), dtype=np.int64)
        relaxation = trivial(table)
        self._found = Found(nothing, 0, _whole(relaxation.bound), relaxation)

    def run(self) -> Found:
        """The best plan that was found in time. Nothing placed is always one."""
        if len(self._table.items) == 0:
            return self._found
        if len(self._table.items) <= _SMALL:
            self._core(self._everything, 1 - _TIE_SHARE)
            if not self._good:
                self._guess()
            return self._found
        self._guess()
        self._relax()
        self._by_parts(_PARTS_SHARE, patient=False)
        # A program of more than that is hardly begun in the time there is: then every second goes into the parts.
        if not self._good and len(self._able) <= _LARGEST:
            able = self._able
            if len(able) > _CORE * len(self._table.workloads):
                self._core(self._best_of(able, _CORE), _CORE_SHARE)
            if not self._good:
                self._core(self._able, _WHOLE_SHARE)
        if not self._good:
            self._by_parts(1 - _TIE_SHARE, patient=True)
        return self._found

    def _guess(self) -> None:
        """Plans that need no solver; of equal ones that which changes least."""
        if self._table.stay:
            self._offer(current(self._table, self._clock))
        self._offer(greedy(self._table, self._table.items.value, self._clock))

    @property
    def _good(self) -> bool:
        """Whether the plan is proven to be as good as was asked for."""
        return self._found.good(self._limits.mip_gap)

    @property
    def _able(self) -> IntArray:
        """Items that a better plan may use."""
        return self._found.relaxation.able(self._found.value + 1)

    def _best_of(self, numbers: IntArray, per_row: int) -> IntArray:
        """Of these items the most promising of each row, and those of the plan so far."""
        table = self._table
        promising = top(table.items.row[numbers], self._found.relaxation.reduced[numbers], per_row, numbers)
        return np.union1d(promising, np.flatnonzero(self._found.counts))

    def _relax(self) -> None:
        """Find a good bound, and a plan that follows its prices."""
        table, limits = self._table, self._limits
        items = table.items
        start, most = self._everything, limits.top_k or _TOP_K
        if limits.top_k is not None or len(items) > _MEDIUM:
            kept = np.flatnonzero(items.kept)
            best = top(items.row, items.value, most, self._everything)
            # Without any item a configuration would look as if it had nothing to give.
            best = np.union1d(best, top(items.column, items.value, _PER_COLUMN, self._everything))
            start = np.union1d(np.union1d(best, kept), np.flatnonzero(self._found.counts))
        relaxation = price(table, start, most, self._clock, _RELAX_SHARE)
        self._found.relaxation = relaxation
        self._found.bound = min(self._found.bound, _whole(relaxation.bound))
        self._offer(greedy(table, relaxation.reduced, self._clock))

    def _by_parts(self, share: float, *, patient: bool) -> None:
        """Improve the plan part by part."""
        if self._good or self._clock.over:
            return
        parts = Neighbourhoods(self._table, self._found.relaxation, self._found.counts)
        parts.run(Clock(self._clock.left * share), patient=patient)
        self._offer(parts.counts)

    def _core(self, numbers: IntArray, share: float) -> None:
        """Solve the program of these items, in order; keep its plan when it is better, and its bound."""
        items = self._table.items.subset(numbers)
        answer = Program(self._table, items).maximise(
            items.value, seconds=self._clock.left * share, gap=self._limits.mip_gap
        )
        if answer.counts is not None:
            counts = np.zeros(len(self._table.items), dtype=np.int64)
            counts[numbers] = answer.counts
            if allowed(self._table, counts):
                self._offer(counts if answer.finished else improved(self._table, counts, self._clock))
        others = np.ones(len(self._table.items), dtype=np.int64)
        others[numbers] = 0
        bound = max(_whole(answer.bound), _whole(self._found.relaxation.bound_of(others)), self._found.value)
        self._found.bound = min(self._found.bound, bound)

    def _offer(self, counts: IntArray) -> None:
        value = int(counts @ self._table.items.value)
        if value > self._found.value and allowed(self._table, counts):
            self._found.counts, self._found.value = counts, value


def _whole(bound: float) -> int:
    """The greatest value that a bound leaves, values being whole numbers; the solver's bound is accurate to 1e-6."""
    if not math.isfinite(bound):
        return np.iinfo(np.int64).max
    return math.floor(bound + 1e-6 * max(1.0, abs(bound) * 1e-3))
