"""Improves a plan part by part: plans a part of the clusters again with the exact solver.

A part has clusters that compete for the same workloads. Most of them keep their configuration, which makes the part
easy to solve; a few may get another configuration. In a problem that is too large to be solved as a whole, this search
comes close to the upper bound of all plans in a short time.

Rows are workloads, columns are configurations of clusters, and items are the variables of the program (see `table`).
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
#: Approximate number of workloads in the first parts.
_FIRST_WORKLOADS: Final = 120
#: First value of `clusters_per_change` after the phase in which all clusters keep their configuration.
_FIRST_CLUSTERS_PER_CHANGE: Final = 8
#: Minimum clusters of a part that may get another configuration, unless all keep theirs.
_MIN_CHANGED_CLUSTERS: Final = 2
#: Factor of the number of parts without an improvement after which the parameters of parts change.
_IDLE_FACTOR: Final = 2
#: Maximum workloads with unplaced replicas in a part.
_MAX_UNPLACED_WORKLOADS: Final = 20
#: Maximum seconds to solve one part.
_MAX_PART_SECONDS: Final = 2.0


class NeighbourhoodSearch:
    """Improves one plan. `counts` has the replicas of each item in the best plan so far."""

    def __init__(self, table: Table, relaxation: Relaxation, counts: IntArray) -> None:
        self._table = table
        self._relaxation = relaxation
        self.counts = counts
        items = table.items
        all_items = np.arange(len(items))
        # Numbers of the most promising items of each row.
        self._promising_items = select_top_items(items.row, relaxation.reduced, _MAX_OPTIONS, all_items)
        # Cluster of each item.
        self._item_cluster = table.cluster_of[items.column]
        # The seed is fixed, so that the same problem always has the same parts.
        self._random = np.random.default_rng(0)

    def improve(self, clock: Clock) -> None:
        """Improve until the time is over, or until parts with all clusters improve nothing."""
        cluster_count = len(self._table.clusters)
        workload_count = max(1, len(self._table.workloads))
        part_size = min(cluster_count, max(_MIN_CLUSTERS, round(_FIRST_WORKLOADS * cluster_count / workload_count)))
        # A part has one cluster that may get another configuration for each `clusters_per_change` clusters. With 0, all
        # clusters keep their configuration, which quickly brings most of the improvement.
        clusters_per_change = 0
        # Number of consecutive parts without an improvement.
        idle_count = 0
        while not clock.is_over:
            counts_before = self.counts
            start_cluster = int(self._random.integers(cluster_count))
            part_clusters = self._find_related_clusters(start_cluster, part_size)
            if not self._replan(part_clusters, clusters_per_change, clock):
                # The solver ran out of time, so the part is too large for this machine or its current load.
                part_size = max(min(cluster_count, _MIN_CLUSTERS), int(part_size / _GROWTH_FACTOR))
            idle_count = idle_count + 1 if counts_before is self.counts else 0
            # Keep the parameters until consecutive parts, which together have twice as many clusters, improve nothing.
            if idle_count <= _IDLE_FACTOR * cluster_count / part_size:
                continue
            idle_count = 0
            if clusters_per_change == 0:
                clusters_per_change = _FIRST_CLUSTERS_PER_CHANGE
            elif part_size == cluster_count and clusters_per_change == 1:
                return
            else:
                clusters_per_change = max(1, clusters_per_change - 1)
                part_size = min(cluster_count, max(part_size + 1, int(part_size * _GROWTH_FACTOR)))

    def _find_related_clusters(self, start_cluster: int, size: int) -> IntArray:
        """Return `size` clusters, with `start_cluster` and clusters that are related to it.

        Clusters are related if the workloads of one prefer the other, directly or through further clusters.
        """
        items = self._table.items
        in_part = np.zeros(len(self._table.clusters), dtype=bool)
        in_part[start_cluster] = True
        while in_part.sum() < size:
            row_in_part = np.zeros(len(self._table.workloads), dtype=bool)
            row_in_part[items.row[(self.counts > 0) & in_part[self._item_cluster]]] = True
            promising_items = self._promising_items[row_in_part[items.row[self._promising_items]]]
            votes = np.bincount(self._item_cluster[promising_items], minlength=len(in_part)).astype(float)
            # Numbers below 1 decide between clusters with equal votes.
            votes += self._random.random(len(in_part))
            votes[in_part] = -1
            missing_count = size - int(in_part.sum())
            # Add half of the missing clusters, then look for others that are related to these.
            in_part[np.argsort(-votes, kind="stable")[: max(1, missing_count // 2)]] = True
        return np.flatnonzero(in_part)

    def _replan(self, part_clusters: IntArray, clusters_per_change: int, clock: Clock) -> bool:
        """Plan `part_clusters` again; one in `clusters_per_change` of them may get another configuration.

        Returns True if the solver ended in time.
        """
        table, items = self._table, self._table.items
        cluster_in_part = np.zeros(len(table.clusters), dtype=bool)
        cluster_in_part[part_clusters] = True
        item_in_part = cluster_in_part[self._item_cluster]
        is_used = self.counts > 0
        # Columns are open if they are used now, or if their cluster is unused or may get another configuration.
        open_cluster = np.ones(len(table.clusters), dtype=bool)
        open_cluster[self._item_cluster[is_used]] = False
        if clusters_per_change:
            change_count = max(_MIN_CHANGED_CLUSTERS, len(part_clusters) // clusters_per_change)
            open_cluster[self._random.permutation(part_clusters)[:change_count]] = True
        open_column = open_cluster[table.cluster_of]
        open_column[items.column[is_used]] = True
        placed_replicas = np.zeros(len(table.workloads), dtype=np.int64)
        np.add.at(placed_replicas, items.row, self.counts)
        # Plan the workloads in the part, and some with unplaced replicas.
        row_in_part = np.zeros(len(table.workloads), dtype=bool)
        unplaced_rows = np.flatnonzero(placed_replicas < table.replicas)
        row_in_part[self._random.permutation(unplaced_rows)[:_MAX_UNPLACED_WORKLOADS]] = True
        row_in_part[items.row[is_used & item_in_part]] = True
        value = int(self.counts @ items.value)
        useful_items = self._relaxation.list_useful_items(value + 1)
        useful_items = useful_items[
            item_in_part[useful_items] & row_in_part[items.row[useful_items]] & open_column[items.column[useful_items]]
        ]
        useful_items = select_top_items(
            items.row[useful_items], self._relaxation.reduced[useful_items], _MAX_OPTIONS, useful_items
        )
        # Include the items outside of the part with their replicas fixed, because these count for their workload.
        current_items = np.flatnonzero(is_used & row_in_part[items.row])
        item_numbers = np.union1d(useful_items, current_items)
        fixed_counts = np.where(item_in_part[item_numbers], 0, self.counts[item_numbers])
        searched_items = items.subset(item_numbers)
        result = IntegerProgram(table, searched_items).maximise(
            searched_items.value,
            seconds=min(_MAX_PART_SECONDS, clock.remaining),
            lower=fixed_counts,
            upper=np.where(item_in_part[item_numbers], searched_items.limit, fixed_counts),
        )
        if result.counts is not None and int(result.counts @ searched_items.value) > int(
            self.counts[item_numbers] @ searched_items.value
        ):
            counts = self.counts.copy()
            counts[item_numbers] = result.counts
            # The solver works with tolerances, so check its plan exactly.
            if is_allowed(table, counts):
                self.counts = counts
        return result.is_finished
