"""Improves a plan part by part: plans a part of the clusters again with the exact solver.

A part has clusters that compete for the same workloads. Most of them keep their configuration, which makes the part
easy to solve; a few may get another configuration. In a problem that is too large to be solved as a whole, this method
soon comes close to the bound.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dsf.optimizer.bounds import Relaxation, select_top_items
from dsf.optimizer.greedy import is_allowed
from dsf.optimizer.program import Clock, IntegerProgram
from dsf.optimizer.table import Table
from dsf.optimizer.values import IntArray

#: Maximum options of a workload in a part.
_MAX_OPTIONS: Final = 12
#: Factor by which parts grow when parts of the current size improve nothing.
_GROWTH_FACTOR: Final = 1.3
#: Minimum clusters of a part.
_MIN_CLUSTERS: Final = 4


class Neighbourhoods:
    """Improves one plan; `counts` is the best plan so far."""

    def __init__(self, table: Table, relaxation: Relaxation, counts: IntArray) -> None:
        self._table = table
        self._relaxation = relaxation
        self.counts = counts
        items = table.items
        all_items = np.arange(len(items))
        # The most promising items of each row.
        self._promising = select_top_items(items.row, relaxation.reduced, _MAX_OPTIONS, all_items)
        # Cluster of each item.
        self._cluster = table.cluster_of[items.column]
        # The seed is fixed, so that the same problem always has the same parts.
        self._random = np.random.default_rng(0)

    def run(self, clock: Clock) -> None:
        """Improve until the time is over, or until parts with all clusters improve nothing."""
        clusters = len(self._table.clusters)
        # The first parts have about 120 workloads.
        size = min(clusters, max(_MIN_CLUSTERS, round(120 * clusters / max(1, len(self._table.workloads)))))
        # One in `share` clusters of a part may get another configuration. With 0, all keep theirs, which quickly brings
        # most of the improvement.
        share = 0
        # Number of consecutive parts without an improvement.
        idle = 0
        while not clock.is_over:
            counts_before = self.counts
            if not self._replan(self._find_related_clusters(int(self._random.integers(clusters)), size), share, clock):
                # The solver ran out of time, so the part is too large for this machine or its current load.
                size = max(min(clusters, _MIN_CLUSTERS), int(size / _GROWTH_FACTOR))
            idle = idle + 1 if counts_before is self.counts else 0
            # Parts keep their size until so many consecutive parts, relative to clusters and size, improve nothing.
            if idle <= 2 * clusters / size:
                continue
            idle = 0
            if share == 0:
                share = 8
            elif size == clusters and share == 1:
                return
            else:
                share = max(1, share - 1)
                size = min(clusters, max(size + 1, int(size * _GROWTH_FACTOR)))

    def _find_related_clusters(self, seed: int, size: int) -> IntArray:
        """Return `size` clusters that are related to the cluster `seed`.

        Clusters are related if the workloads of one prefer the other, directly or through further clusters.
        """
        items = self._table.items
        part = np.zeros(len(self._table.clusters), dtype=bool)
        part[seed] = True
        while part.sum() < size:
            rows = np.zeros(len(self._table.workloads), dtype=bool)
            rows[items.row[(self.counts > 0) & part[self._cluster]]] = True
            promising_clusters = self._cluster[self._promising[rows[items.row[self._promising]]]]
            votes = np.bincount(promising_clusters, minlength=len(part)).astype(float)
            votes += self._random.random(len(part))
            votes[part] = -1
            missing_count = size - int(part.sum())
            # Add half of the missing clusters, then look for others that are related to these.
            part[np.argsort(-votes, kind="stable")[: max(1, missing_count // 2)]] = True
        return np.flatnonzero(part)

    def _replan(self, part: IntArray, share: int, clock: Clock) -> bool:
        """Plan the clusters of `part` again; one in `share` of them may get another configuration.

        Returns True if the solver ended in time.
        """
        table, items = self._table, self._table.items
        within = np.zeros(len(table.clusters), dtype=bool)
        within[part] = True
        is_inside = within[self._cluster]
        is_used = self.counts > 0
        # Open columns are the configurations that stay, and all those of unused clusters and clusters that may change.
        open_cluster = np.ones(len(table.clusters), dtype=bool)
        open_cluster[self._cluster[is_used]] = False
        if share:
            open_cluster[self._random.permutation(part)[: max(2, len(part) // share)]] = True
        open_column = open_cluster[table.cluster_of]
        open_column[items.column[is_used]] = True
        placed = np.zeros(len(table.workloads), dtype=np.int64)
        np.add.at(placed, items.row, self.counts)
        rows = np.zeros(len(table.workloads), dtype=bool)
        unplaced = np.flatnonzero(placed < table.replicas)
        rows[self._random.permutation(unplaced)[:20]] = True
        rows[items.row[is_used & is_inside]] = True
        value = int(self.counts @ items.value)
        useful_items = self._relaxation.list_useful_items(value + 1)
        useful_items = useful_items[
            is_inside[useful_items] & rows[items.row[useful_items]] & open_column[items.column[useful_items]]
        ]
        useful_items = select_top_items(
            items.row[useful_items], self._relaxation.reduced[useful_items], _MAX_OPTIONS, useful_items
        )
        # Fix the replicas outside of the part, which count for their workload.
        current_items = np.flatnonzero(is_used & rows[items.row])
        numbers = np.union1d(useful_items, current_items)
        fixed = np.where(is_inside[numbers], 0, self.counts[numbers])
        searched_items = items.subset(numbers)
        result = IntegerProgram(table, searched_items).maximise(
            searched_items.value,
            seconds=min(2.0, clock.remaining),
            lower=fixed,
            upper=np.where(is_inside[numbers], searched_items.limit, fixed),
        )
        if result.counts is not None and int(result.counts @ searched_items.value) > int(
            self.counts[numbers] @ searched_items.value
        ):
            counts = self.counts.copy()
            counts[numbers] = result.counts
            if is_allowed(table, counts):
                self.counts = counts
        return result.is_finished
