"""Explains the assignment of each workload, and why replicas are unplaced."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dsf.optimizer.table import REFUSALS, Table
from dsf.optimizer.values import IntArray
from dsf.optimizer.views import ExplanationView, OptionView, Reason, UnplacedView
from dsf.text import list_names

_NO_SCORE = REFUSALS.index(Reason.NO_SCORE)
_EXPIRED = REFUSALS.index(Reason.EXPIRED)
_TOO_LARGE = REFUSALS.index(Reason.TOO_LARGE)
_NEGATIVE = REFUSALS.index(Reason.NEGATIVE)


class _Explanation(NamedTuple):
    """The reason why a workload is not placed on an option."""

    reason: Reason
    message: str


class Explainer:
    """Explains the assignments of one plan. `placed` has the replicas by row and column of the table."""

    def __init__(self, table: Table, placed: IntArray) -> None:
        self._table = table
        self._placed = placed
        # Remaining supply, by column and kind.
        self._free = table.supply - placed.T @ table.request
        # Cluster -> column of its configuration, for clusters in use.
        used_columns = np.flatnonzero(placed.any(axis=0))
        self._used_columns = {int(table.cluster_of[column]): int(column) for column in used_columns}

    def explain(self, row: int) -> ExplanationView:
        """Return the explanation of this workload's assignment."""
        table = self._table
        refusal_codes = table.refusal_codes[row]
        chosen_columns = np.flatnonzero(self._placed[row])
        # Prefer a usable alternative, which explains more than an unusable one.
        column = self._find_next_best(row, chosen_columns, usable=True)
        if column is None:
            column = self._find_next_best(row, chosen_columns, usable=False)
        explanation = (
            self._explain_rejection(row, column, chosen_columns)
            if column is not None
            else self._explain_no_alternative(row, chosen_columns)
        )
        return ExplanationView(
            workload=table.workloads[row].name,
            chosen=[self._make_option(row, index) for index in chosen_columns.tolist()],
            next_best=None if column is None else self._make_option(row, column),
            reason=explanation.reason,
            message=explanation.message,
            options_without_score=int((refusal_codes == _NO_SCORE).sum()),
            options_with_expired_score=int((refusal_codes == _EXPIRED).sum()),
        )

    def explain_unplaced(self, row: int) -> UnplacedView | None:
        """Return why replicas of this workload are unplaced; None if all are placed."""
        table = self._table
        chosen_columns = np.flatnonzero(self._placed[row])
        count = int(table.replicas[row] - self._placed[row].sum())
        if count == 0:
            return None
        column = self._find_next_best(row, chosen_columns, usable=True)
        if column is None:
            explanation = self._explain_no_option(row, chosen_columns)
        else:
            explanation = self._find_obstacle(row, column) or _Explanation(
                Reason.NOT_PROVEN, "the search ended before it could be placed"
            )
            option = self._make_option(row, column)
            best_option = f"{option.cluster} with {option.device} ({option.score:g})"
            explanation = _Explanation(explanation.reason, f"best option left is {best_option}: {explanation.message}")
        name = table.workloads[row].name
        return UnplacedView(workload=name, replicas=count, reason=explanation.reason, message=explanation.message)

    def _make_option(self, row: int, column: int) -> OptionView:
        table = self._table
        return OptionView(
            cluster=table.clusters[table.cluster_of[column]],
            device=table.configurations[column].device,
            score=table.score(float(table.value[row, column])),
        )

    def _compute_worth(self, row: int) -> IntArray:
        """Return the value of one replica in each column, in units, including the bonus for staying."""
        worth: IntArray = self._table.value[row] + self._table.scores.stay_bonus * (self._table.stay_limit[row] > 0)
        return worth

    def _find_next_best(self, row: int, chosen_columns: IntArray, *, usable: bool) -> int | None:
        """Return the column with the greatest value among those that are not chosen, or None.

        With `usable`, only columns without a refusal count, otherwise all columns with a score. The first column by
        name is returned for equal values.
        """
        refusal_codes = self._table.refusal_codes[row]
        is_candidate = refusal_codes == 0 if usable else (refusal_codes != _NO_SCORE) & (refusal_codes != _EXPIRED)
        is_candidate[chosen_columns] = False
        if not is_candidate.any():
            return None
        return int(np.where(is_candidate, self._compute_worth(row), np.iinfo(np.int64).min).argmax())

    def _explain_rejection(self, row: int, column: int, chosen_columns: IntArray) -> _Explanation:
        table = self._table
        refusal_code = table.refusal_codes[row, column]
        if refusal_code == _TOO_LARGE:
            return _Explanation(Reason.TOO_LARGE, self._describe_shortage(row, column))
        if refusal_code == _NEGATIVE:
            return _Explanation(Reason.NEGATIVE, "its score, weighted, is below zero: being there would lower the sum")
        if not len(chosen_columns):
            return self._find_obstacle(row, column) or _Explanation(
                Reason.NOT_PROVEN, "the search ended before this was tried"
            )
        worth = self._compute_worth(row)
        worst_column = min(chosen_columns, key=lambda index: (worth[index], index))
        score, other_score = (table.score(float(table.value[row, index])) for index in (worst_column, column))
        if worth[column] < worth[worst_column]:
            if other_score >= score:
                difference = f"{other_score - score:g} more" if other_score > score else "the same"
                return _Explanation(
                    Reason.KEPT, f"scores {difference}, and staying is worth {table.score(table.scores.stay_bonus):g}"
                )
            return _Explanation(Reason.LOWER_SCORE, f"scores {score - other_score:g} less")
        if worth[column] == worth[worst_column]:
            obstacle = self._find_obstacle(row, column)
            obstacle_text = f", and {obstacle.message}" if obstacle else ""
            return _Explanation(Reason.TIE, f"is worth the same{obstacle_text}")
        return self._find_obstacle(row, column) or _Explanation(
            Reason.NOT_PROVEN, "the search ended before this was tried"
        )

    def _find_obstacle(self, row: int, column: int) -> _Explanation | None:
        """Return the obstacle to one more replica in a column of this plan, or None."""
        table = self._table
        cluster = int(table.cluster_of[column])
        used_column = self._used_columns.get(cluster, column)
        if used_column != column:
            occupants = self._format_names(used_column, row)
            device = table.configurations[used_column].device
            occupant_text = f" for {occupants}" if occupants else ""
            return _Explanation(
                Reason.CONFIGURATION, f"{table.clusters[cluster]} is set up with {device}{occupant_text}"
            )
        for kind in np.flatnonzero(self._free[column] < table.request[row]):
            name = table.kinds[kind]
            takers = self._format_names(column, -1)
            needs = table.workloads[row].request[name]
            supply = table.configurations[column].supply.get(name, 0)
            message = f"{name} of {table.clusters[cluster]} ({supply}) is taken by {takers}; {needs} needed"
            return _Explanation(Reason.CAPACITY, message)
        return None

    def _format_names(self, column: int, without: int) -> str:
        table = self._table
        placed = self._placed[:, column]
        takers = [(row, placed[row]) for row in np.flatnonzero(placed) if row != without]
        workload_names = [table.workloads[row].name + (f" x{count}" if count > 1 else "") for row, count in takers]
        return list_names(workload_names, 3)

    def _describe_shortage(self, row: int, column: int) -> str:
        table = self._table
        kind = table.kinds[int(np.flatnonzero(table.supply[column] < table.request[row])[0])]
        supply = table.configurations[column].supply.get(kind, 0)
        return f"supplies {supply} of {kind}; {table.workloads[row].request[kind]} needed"

    def _explain_no_alternative(self, row: int, chosen_columns: IntArray) -> _Explanation:
        if not len(chosen_columns):
            return self._explain_no_option(row, chosen_columns)
        other_codes = np.delete(self._table.refusal_codes[row], chosen_columns)
        if not len(other_codes):
            return _Explanation(Reason.NO_CONFIGURATION, "there is no other option")
        reason = Reason.NO_SCORE if (other_codes == _NO_SCORE).any() else Reason.EXPIRED
        return _Explanation(reason, "no other option has a usable score")

    def _explain_no_option(self, row: int, chosen_columns: IntArray) -> _Explanation:
        """Return why a workload has no usable option besides the chosen columns."""
        table = self._table
        if not table.configurations:
            return _Explanation(Reason.NO_CONFIGURATION, "no cluster has a configuration to choose")
        if len(chosen_columns):
            return _Explanation(Reason.CAPACITY, "no cluster is left that could take one more replica")
        refusal_codes = table.refusal_codes[row]
        if (refusal_codes == _NEGATIVE).any():
            message = "its scores, weighted, are below zero wherever it fits: placing it would lower the sum"
            return _Explanation(Reason.NEGATIVE, message)
        if (refusal_codes == _TOO_LARGE).any():
            best_column = int(np.where(refusal_codes == _TOO_LARGE, table.value[row], np.iinfo(np.int64).min).argmax())
            option, shortage_text = self._make_option(row, best_column), self._describe_shortage(row, best_column)
            message = (
                f"no configuration with a score is large enough; {option.cluster} with {option.device} {shortage_text}"
            )
            return _Explanation(Reason.TOO_LARGE, message)
        if (refusal_codes == _EXPIRED).all():
            return _Explanation(Reason.EXPIRED, f"all scores of app {table.workloads[row].app} have expired")
        if (refusal_codes == _EXPIRED).any():
            return _Explanation(Reason.EXPIRED, f"scores of app {table.workloads[row].app} are missing or have expired")
        return _Explanation(Reason.NO_SCORE, f"no cluster has a score of app {table.workloads[row].app}")
