"""Makes a plan without a solver, from which the search starts, and checks plans."""

from __future__ import annotations

import numpy as np

from dsf.optimizer.bounds import select_top_items
from dsf.optimizer.program import Clock, FloatArray
from dsf.optimizer.table import Table
from dsf.optimizer.values import IntArray


def place_greedily(table: Table, worth: IntArray | FloatArray, clock: Clock) -> IntArray:
    """Return replicas per item of a plan that is made without a solver.

    Items get as many replicas as fit, in the order of `worth` (per item), small requests first. Then workloads are
    improved one by one until nothing changes.
    """
    items = table.items
    # First only the best items of each workload; `improve` then tries all that fit.
    best_items = select_top_items(items.row, worth, 30, np.arange(len(items)))
    size = table.request[items.row[best_items]].sum(axis=1)
    placement = _Placement(table)
    for item in best_items[np.lexsort((size, -worth[best_items]))]:
        placement.fill(int(item))
    for _ in range(20):
        # Use a list instead of a generator, because every row must be improved.
        if clock.is_over or not sum([placement.improve(row) for row in range(len(table.workloads))]):
            break
    return placement.counts


class _Placement:
    """Replicas per item, with the remaining replicas of workloads, clusters and resources."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.counts = np.zeros(len(table.items), dtype=np.int64)
        # Unplaced replicas per row, and remaining supply per column and kind.
        self._unplaced, self._free = table.replicas.copy(), table.supply.copy()
        # Replicas per column.
        self._in_column = np.zeros(len(table.configurations), dtype=np.int64)
        # Column of each cluster's configuration; -1 while the cluster is unused.
        self._used_columns = np.full(len(table.clusters), -1, dtype=np.int64)
        # Number of the first item of each row.
        self._first_items = np.searchsorted(table.items.row, np.arange(len(table.workloads) + 1))

    def fill(self, item: int) -> None:
        """Place as many unplaced replicas on an item as fit."""
        items, table = self._table.items, self._table
        row, column = items.row[item], items.column[item]
        if not self._unplaced[row] or self._used_columns[table.cluster_of[column]] not in (-1, column):
            return
        count = min(self._unplaced[row], items.limit[item] - self.counts[item])
        for amount, free_amount in zip(table.request[row], self._free[column], strict=True):
            if amount:
                count = min(count, free_amount // amount)
        self._add(item, count)

    def improve(self, row: int) -> bool:
        """Place the unplaced replicas of a workload; if all are placed, move a replica to a better item where it fits.

        Returns True if a replica was placed or moved.
        """
        table, items = self._table, self._table.items
        start, end = self._first_items[row], self._first_items[row + 1]
        columns, counts, value = items.column[start:end], self.counts[start:end], items.value[start:end]
        used_columns = self._used_columns[table.cluster_of[columns]]
        is_possible = ((used_columns == -1) | (used_columns == columns)) & (counts < items.limit[start:end])
        is_possible &= (self._free[columns] >= table.request[row]).all(axis=1)
        if not is_possible.any():
            return False
        best_index = int(np.where(is_possible, value, -1).argmax())
        if self._unplaced[row]:
            self.fill(start + best_index)
            return True
        worst_index = int(np.where(counts, value, np.iinfo(np.int64).max).argmin())
        if value[best_index] <= value[worst_index]:
            return False
        self._add(start + worst_index, -1)
        self._add(start + best_index, 1)
        return True

    def _add(self, item: int, count: int) -> None:
        items, table = self._table.items, self._table
        row, column = items.row[item], items.column[item]
        self.counts[item] += count
        self._unplaced[row] -= count
        self._free[column] -= count * table.request[row]
        self._in_column[column] += count
        self._used_columns[table.cluster_of[column]] = column if self._in_column[column] else -1


def is_allowed(table: Table, counts: IntArray) -> bool:
    """Return True if a plan (replicas per item) respects every limit, computed exactly in whole numbers."""
    items = table.items
    used_items = np.flatnonzero(counts)
    placed = np.zeros_like(table.replicas)
    np.add.at(placed, items.row[used_items], counts[used_items])
    used_amounts = np.zeros_like(table.supply)
    np.add.at(used_amounts, items.column[used_items], counts[used_items, None] * table.request[items.row[used_items]])
    columns = np.unique(items.column[used_items])
    return bool(
        (counts >= 0).all()
        and (counts <= items.limit).all()
        and (placed <= table.replicas).all()
        and (used_amounts <= table.supply).all()
        and len(np.unique(table.cluster_of[columns])) == len(columns)
    )
