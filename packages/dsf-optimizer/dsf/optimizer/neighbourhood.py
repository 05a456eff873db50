"""Makes a plan better part by part: some clusters that compete for the same workloads are planned anew, exactly, while
everything else stays. Most clusters of a part keep their configuration, which makes it easy to solve; a few may get
another one. In an instance too large to be solved whole this soon comes close to the bound."""

from __future__ import annotations

from typing import Final

import numpy as np

from dsf.optimizer.bounds import Relaxation, select_top_items
from dsf.optimizer.greedy import is_allowed
from dsf.optimizer.program import Clock, IntegerProgram
from dsf.optimizer.table import Table
from dsf.optimizer.values import IntArray

#: Options per workload that are looked at.
_OPTIONS: Final = 12
#: How much a part grows when parts of a size do not help any more.
_GROWTH: Final = 1.3
#: Fewest clusters of a part.
_LEAST: Final = 4


class Neighbourhoods:
    """Improves one plan; `counts` is the best so far."""

    def __init__(self, table: Table, relaxation: Relaxation, counts: IntArray) -> None:
        self._table = table
        self._relaxation = relaxation
        self.counts = counts
        items = table.items
        all_items = np.arange(len(items))
        #: The most promising items of each row, with the plan's own.
        self._promising = select_top_items(items.row, relaxation.reduced, _OPTIONS, all_items)
        self._cluster = table.cluster_of[items.column]
        # Always the same parts for the same problem.
        self._random = np.random.default_rng(0)

    def run(self, clock: Clock) -> None:
        """Improve until the time is over, or parts as large as everything change nothing any more."""
        clusters = len(self._table.clusters)
        # About 120 workloads in a part at first.
        size = min(clusters, max(_LEAST, round(120 * clusters / max(1, len(self._table.workloads)))))
        # First without other configurations: much of what can be gained is there, and it is quickly found.
        share = 0
        idle = 0
        while not clock.over:
            before = self.counts
            if not self._replan(self._find_related_clusters(int(self._random.integers(clusters)), size), share, clock):
                # Too large for this machine, or for what else it does.
                size = max(min(clusters, _LEAST), int(size / _GROWTH))
            idle = idle + 1 if before is self.counts else 0
            # Parts grow when so many in a row, for each cluster and their size, change nothing.
            if idle <= 2 * clusters / size:
                continue
            idle = 0
            if share == 0:
                # The share of the clusters that may get another configuration is one in this number.
                share = 8
            elif size == clusters and share == 1:
                return
            else:
                share = max(1, share - 1)
                size = min(clusters, max(size + 1, int(size * _GROWTH)))

    def _find_related_clusters(self, seed: int, size: int) -> IntArray:
        """Clusters that the workloads of a cluster would go to, and the workloads of those, and so on."""
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
            # Half of what is missing, then look again from there.
            part[np.argsort(-votes, kind="stable")[: max(1, missing_count // 2)]] = True
        return np.flatnonzero(part)

    def _replan(self, part: IntArray, share: int, clock: Clock) -> bool:
        """Plan the clusters of `part` anew, one in `share` with any configuration; whether the solver ended in time."""
        table, items = self._table, self._table.items
        within = np.zeros(len(table.clusters), dtype=bool)
        within[part] = True
        inside = within[self._cluster]
        is_used = self.counts > 0
        # Columns of the configurations that stay, of clusters that have none yet, and of those that may change.
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
        rows[items.row[is_used & inside]] = True
        value = int(self.counts @ items.value)
        able = self._relaxation.able(value + 1)
        able = able[inside[able] & rows[items.row[able]] & open_column[items.column[able]]]
        able = select_top_items(items.row[able], self._relaxation.reduced[able], _OPTIONS, able)
        # Replicas outside of the part count for their workload and are fixed.
        current_items = np.flatnonzero(is_used & rows[items.row])
        numbers = np.union1d(able, current_items)
        fixed = np.where(inside[numbers], 0, self.counts[numbers])
        searched_items = items.subset(numbers)
        answer = IntegerProgram(table, searched_items).maximise(
            searched_items.value,
            seconds=min(2.0, clock.remaining),
            lower=fixed,
            upper=np.where(inside[numbers], searched_items.limit, fixed),
        )
        if answer.counts is not None and int(answer.counts @ searched_items.value) > int(
            self.counts[numbers] @ searched_items.value
        ):
            counts = self.counts.copy()
            counts[numbers] = answer.counts
            if is_allowed(table, counts):
                self.counts = counts
        return answer.finished
