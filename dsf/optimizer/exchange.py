"""Plans that differ from a given one by an exchange of places; a cheap way to many of the steps by names."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dsf.optimizer.table import Items, Table
from dsf.optimizer.values import IntArray

#: Most workloads that are tried as partners of an exchange.
_PARTNERS = 20


def exchanges(table: Table, items: Items, counts: IntArray, fixed: IntArray, target: int) -> Iterator[IntArray]:
    """Plans in which the workload of the item `target`, which has one replica, is on that item.

    They are guesses: the caller checks them. Items with `fixed` replicas stay as they are.
    """
    first, last = np.searchsorted(items.row, [items.row[target], items.row[target] + 1])
    own = np.arange(first, last)[counts[first:last] > 0]
    moved = counts.copy()
    moved[own] = 0
    moved[target] = 1
    yield moved
    on_target = np.flatnonzero((items.column == items.column[target]) & (counts == 1) & (fixed == 0))
    for partner in on_target[::-1][:_PARTNERS]:
        swapped = moved.copy()
        swapped[partner] = 0
        if len(own):
            place = _find(items, int(items.row[partner]), int(items.column[own[0]]))
            if place < 0:
                continue
            swapped[place] += 1
        yield swapped
    if len(own):
        source = int(table.cluster_of[items.column[own[0]]])
        swapped_clusters = _swap(table, items, counts, fixed, source, int(table.cluster_of[items.column[target]]))
        if swapped_clusters is not None:
            yield swapped_clusters


def _find(items: Items, row: int, column: int) -> int:
    """The first item of a row in a column; -1 when there is none."""
    first, last = np.searchsorted(items.row, [row, row + 1])
    place = int(first + np.searchsorted(items.column[first:last], column))
    return place if place < last and items.column[place] == column else -1


def _swap(table: Table, items: Items, counts: IntArray, fixed: IntArray, one: int, other: int) -> IntArray | None:
    """All that is on two clusters exchanged, each workload keeping its device; None when that is not possible."""
    if one == other:
        return None
    swapped = counts.copy()
    clusters = table.cluster_of[items.column]
    taken = np.flatnonzero(((clusters == one) | (clusters == other)) & (counts > 0))
    if fixed[taken].any():
        return None
    swapped[taken] = 0
    for item in taken:
        target = other if clusters[item] == one else one
        device = table.configurations[items.column[item]].device
        columns = [
            int(column)
            for column in np.flatnonzero(table.cluster_of == target)
            if table.configurations[column].device == device
        ]
        place = _find(items, int(items.row[item]), columns[0]) if columns else -1
        if place < 0:
            return None
        swapped[place] += counts[item]
    return swapped
