"""Computes upper bounds of the best plan, and finds items that cannot be part of it.

For any prices that are not negative, the value of all items at these prices is an upper bound of every plan
(Lagrange). An item is left out if its value is so far below its price that a plan with it cannot beat the best known
plan. Both hold for any accuracy of the solver, because the bound is computed here from the prices alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dsf.optimizer.program import Clock, FloatArray, IntegerProgram, Prices
from dsf.optimizer.table import Table
from dsf.optimizer.values import IntArray


@dataclass(frozen=True)
class Relaxation:
    """An upper bound of the value of every plan, in units."""

    bound: float
    #: Amount that each item of the table would add to the bound, mostly below zero.
    reduced: FloatArray

    def compute_bound_with(self, items: IntArray) -> float:
        """Return an upper bound of the plans that use at least one of `items` (a mask)."""
        if not items.any():
            return 0.0
        return self.bound + min(0.0, float(self.reduced[items.astype(bool)].max()))

    def list_useful_items(self, minimum: int) -> IntArray:
        """Return the numbers of the items that a plan of at least this value may use."""
        return np.flatnonzero(self.bound + np.minimum(self.reduced, 0.0) >= minimum - 0.5)


def make_trivial_bound(table: Table) -> Relaxation:
    """Return the bound in which every replica gets its workload's best option."""
    best = np.zeros(len(table.workloads), dtype=np.int64)
    items = table.items
    np.maximum.at(best, items.row, items.value)
    return Relaxation(float((best * table.replicas).sum()), np.zeros(len(items)))


def relax(table: Table, active_items: IntArray, prices: Prices) -> Relaxation:
    """Return the relaxation for the whole table, at prices that were computed for `active_items` (item numbers)."""
    items = table.items
    link = np.zeros(len(items))
    link[active_items] = prices.link
    linked = np.bincount(items.column, weights=link * items.limit, minlength=len(table.configurations))
    supply = table.supply.astype(float)
    worth = (supply * prices.amount).sum(axis=1) + linked
    # A cluster may cost more than its configuration is worth. The difference is charged to the configuration's
    # resources.
    unused_worth = np.maximum(prices.cluster[table.cluster_of] - worth, 0.0)
    supplied = (supply > 0).sum(axis=1)
    share = np.divide(unused_worth, supplied, out=np.zeros_like(unused_worth), where=supplied > 0)
    amount = prices.amount + np.divide(share[:, None], supply, out=np.zeros_like(supply), where=supply > 0)
    worth = (supply * amount).sum(axis=1) + linked
    reduced_values = items.value - prices.row[items.row] - link
    for kind in range(len(table.kinds)):
        reduced_values -= table.request[items.row, kind] * amount[items.column, kind]
    bound = (
        float((table.replicas * prices.row).sum())
        + float(prices.cluster.sum())
        + float((np.maximum(reduced_values, 0.0) * items.limit).sum())
        + float(np.maximum(worth - prices.cluster[table.cluster_of], 0.0).sum())
    )
    # Increase the bound by the relative size of rounding errors.
    return Relaxation(bound * (1 + 1e-9) + 1e-9, reduced_values)


def solve_relaxation(table: Table, start: IntArray, per_row: int, clock: Clock, share: float) -> Relaxation:
    """Return the best relaxation that is found in this `share` of the remaining time.

    The first round solves the relaxation over the items `start`. Each further round adds items that would raise the
    bound, at most `per_row` per workload, until there are no such items.
    """
    best_relaxation, active_items = make_trivial_bound(table), start
    relaxation_clock = Clock(clock.remaining * share)
    # With many items of several kinds, the simplex method takes ten times as long as the interior point method.
    solver: Literal["choose", "ipm"] = "ipm" if len(start) < len(table.items) and len(table.kinds) > 1 else "choose"
    for _ in range(12):
        program = IntegerProgram(table, table.items.subset(active_items))
        prices = program.compute_prices(relaxation_clock.remaining, solver)
        if prices is None:
            break
        relaxation = relax(table, active_items, prices)
        previous_bound = best_relaxation.bound
        if relaxation.bound < previous_bound:
            best_relaxation = relaxation
        # Stop when a round has lowered the bound by less than a thousandth.
        if abs(previous_bound - relaxation.bound) <= 1e-3 * previous_bound:
            break
        is_inactive = np.ones(len(table.items), dtype=bool)
        is_inactive[active_items] = False
        min_gain = 1e-7 * max(1.0, float(table.items.value.max()))
        raising_items = np.flatnonzero(is_inactive & (relaxation.reduced > min_gain))
        if not len(raising_items):
            break
        added_items = select_top_items(
            table.items.row[raising_items], relaxation.reduced[raising_items], per_row, raising_items
        )
        active_items = np.union1d(active_items, added_items)
    return best_relaxation


def select_top_items(row: IntArray, value: FloatArray | IntArray, per_row: int, numbers: IntArray) -> IntArray:
    """Return the `numbers` of the `per_row` items with the greatest values of each row, in ascending order.

    `row`, `value` and `numbers` describe the same items. Of equal values, the first one counts.
    """
    order = np.lexsort((-value, row))
    sorted_rows = row[order]
    first_positions = np.searchsorted(sorted_rows, sorted_rows, side="left")
    return np.sort(numbers[order[np.arange(len(order)) - first_positions < per_row]])
