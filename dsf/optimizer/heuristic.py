"""A good plan without a solver: greedy, then insertions and moves that raise the sum. Also the check of every plan."""

from __future__ import annotations

import numpy as np

from dsf.optimizer.program import Clock, FloatArray
from dsf.optimizer.table import Table
from dsf.optimizer.values import IntArray

#: Items per workload that the greedy pass looks at one by one; then it looks at all of those that fit.
_LOOKED_AT = 30
#: Most passes of the local improvement.
_PASSES = 20


class Placement:
    """Replicas per item, with what is left of workloads, clusters and resources."""

    def __init__(self, table: Table, counts: IntArray | None = None) -> None:
        items = table.items
        self._table = table
        self.counts = np.zeros(len(items), dtype=np.int64)
        self._left = table.replicas.copy()
        self._free = table.supply.copy()
        self._in_column = np.zeros(len(table.configurations), dtype=np.int64)
        #: Column that a cluster is set up with; -1 while it has nothing.
        self._set_up = np.full(len(table.clusters), -1, dtype=np.int64)
        self._first = np.searchsorted(items.row, np.arange(len(table.workloads) + 1))
        if counts is not None:
            for item in np.flatnonzero(counts):
                self._add(int(item), int(counts[item]))

    def fill(self, item: int) -> None:
        """Put as many replicas on an item as there are left and fit."""
        items, table = self._table.items, self._table
        row, column = items.row[item], items.column[item]
        if not self._left[row] or self._set_up[table.cluster_of[column]] not in (-1, column):
            return
        count = min(int(self._left[row]), int(items.limit[item] - self.counts[item]))
        for asked, free in zip(table.request[row], self._free[column], strict=True):
            if asked:
                count = min(count, int(free // asked))
        if count > 0:
            self._add(item, count)

    def fill_best(self, row: int) -> None:
        """Place what is left of a row, each time on the best item that fits."""
        while self._left[row]:
            item = self._best(row)
            if item < 0:
                return
            self.fill(item)

    def improve(self, clock: Clock) -> None:
        """Place what is left, and move replicas to better items that have room, until nothing changes."""
        items = self._table.items
        for _ in range(_PASSES):
            changed = False
            for row in range(len(self._table.workloads)):
                if clock.over:
                    return
                left = self._left[row]
                self.fill_best(row)
                changed |= bool(self._left[row] != left)
                placed = np.flatnonzero(self.counts[self._first[row] : self._first[row + 1]]) + self._first[row]
                for item in placed:
                    better = self._best(row)
                    if better >= 0 and items.value[better] > items.value[item]:
                        self._add(int(item), -1)
                        self._add(better, 1)
                        changed = True
            if not changed:
                return

    def _best(self, row: int) -> int:
        """The item of a row with room for a replica and the greatest value; -1 when there is none."""
        table, items = self._table, self._table.items
        numbers = slice(int(self._first[row]), int(self._first[row + 1]))
        columns = items.column[numbers]
        set_up = self._set_up[table.cluster_of[columns]]
        able = (set_up == -1) | (set_up == columns)
        able &= self.counts[numbers] < items.limit[numbers]
        able &= (self._free[columns] >= table.request[row]).all(axis=1)
        if not able.any():
            return -1
        return int(np.where(able, items.value[numbers], -1).argmax()) + int(self._first[row])

    def _add(self, item: int, count: int) -> None:
        items, table = self._table.items, self._table
        row, column = items.row[item], items.column[item]
        self.counts[item] += count
        self._left[row] -= count
        self._free[column] -= count * table.request[row]
        self._in_column[column] += count
        self._set_up[table.cluster_of[column]] = column if self._in_column[column] else -1


def greedy(table: Table, worth: IntArray | FloatArray, clock: Clock) -> IntArray:
    """Replicas per item: items in the order of `worth`, then improved."""
    items = table.items
    order = np.lexsort((np.arange(len(items)), table.request[items.row].sum(axis=1), -worth))
    # Of each row only the first few in this order.
    by_row = np.argsort(items.row[order], kind="stable")
    rows = items.row[order][by_row]
    rank = np.empty(len(items), dtype=np.int64)
    rank[by_row] = np.arange(len(items)) - np.searchsorted(rows, rows, side="left")
    placement = Placement(table)
    for item in order[rank < _LOOKED_AT]:
        placement.fill(int(item))
    placement.improve(clock)
    return placement.counts


def current(table: Table, clock: Clock) -> IntArray:
    """What is there now as far as it still fits, completed and improved."""
    placement = Placement(table)
    for item in np.flatnonzero(table.items.kept):
        placement.fill(int(item))
    placement.improve(clock)
    return placement.counts


def improved(table: Table, counts: IntArray, clock: Clock) -> IntArray:
    """A plan that is at least as good."""
    placement = Placement(table, counts)
    placement.improve(clock)
    return placement.counts


def allowed(table: Table, counts: IntArray) -> bool:
    """Whether a plan keeps every limit, counted in whole numbers."""
    items = table.items
    if (counts < 0).any() or (counts > items.limit).any():
        return False
    used = np.flatnonzero(counts)
    placed = np.zeros(len(table.workloads), dtype=np.int64)
    np.add.at(placed, items.row[used], counts[used])
    if (placed > table.replicas).any():
        return False
    columns = np.unique(items.column[used])
    if len(np.unique(table.cluster_of[columns])) < len(columns):
        return False
    taken = np.zeros_like(table.supply)
    np.add.at(taken, items.column[used], counts[used, None] * table.request[items.row[used]])
    return bool((taken <= table.supply).all())
