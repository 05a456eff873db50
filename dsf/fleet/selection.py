"""Selects the rows of a response: the filter of pairs, the page size, and the cursor of the next page."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from dsf.errors import CursorError, QueryError
from dsf.fleet.rowgroups import RowGroups
from dsf.fleet.snapshot import NO_END, RANKS, SnapshotRow
from dsf.fleet.verdict import Verdict

#: Maximum rows in one response.
MAX_ROWS: Final = 200


@dataclass(frozen=True)
class PairFilter:
    """Filter of pairs. A pair matches if it meets all conditions that are not None.

    `scorers` and `clusters` are names. `stage` and `reason` are those of failing pairs, of pairs whose ticks were
    skipped, and of scores without some of their results. `matches_failure` gets a stage and a reason.
    """

    scorer: str | None = None
    scorers: Collection[str] | None = None
    clusters: Collection[str] | None = None
    states: Collection[Verdict] | None = None
    stage: str | None = None
    reason: str | None = None
    matches_failure: Callable[[str, str], bool] | None = None

    def select_rows(self, groups: RowGroups, now: float) -> dict[Verdict, list[SnapshotRow]]:
        """Return the matching rows of a scorer by state at `now` (unix seconds). Ignores names of scorers."""
        if self.clusters is not None:
            groups = RowGroups({name: groups.rows[name] for name in self.clusters if name in groups.rows}, now)
        rows_by_state = groups.states
        if self.reason is not None or self.stage is not None or self.matches_failure is not None:
            rows_by_state = {}
            for state, row, failure in groups.reasons:
                if self._matches(failure.stage, failure.reason):
                    rows_by_state.setdefault(state, []).append(row)
        return {state: rows for state, rows in rows_by_state.items() if self.states is None or state in self.states}

    def _matches(self, stage: str, reason: str) -> bool:
        if self.matches_failure is not None and not self.matches_failure(stage, reason):
            return False
        return self.stage in (None, stage) and self.reason in (None, reason)


class Cursor(NamedTuple):
    """Position of the last row of a page. The next page begins after it."""

    #: Index of the row's state in `RANKS`.
    rank: int
    #: Sort value of the row within its state (`SnapshotRow.compute_sort_value`).
    sort_value: float
    scorer: str
    cluster: str

    def __str__(self) -> str:
        return f"{self.rank}/{self.sort_value!r}/{self.scorer}/{self.cluster}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse the text of a cursor. Raises CursorError if it is not valid."""
        try:
            rank, sort_value, scorer, cluster = text.split("/")
            cursor = cls(int(rank), float(sort_value), scorer, cluster)
        except ValueError:
            raise _make_cursor_error() from None
        if not (0 <= cursor.rank < len(RANKS) and 0 <= cursor.sort_value <= NO_END):
            raise _make_cursor_error()
        return cursor


def check_page_size(limit: int) -> int:
    """Return the number of rows of a page with this limit. Raises QueryError if the limit is less than one."""
    if limit < 1:
        raise QueryError(f"limit: at least 1, not {limit}")
    return min(limit, MAX_ROWS)


def _make_cursor_error() -> CursorError:
    return CursorError("not a cursor of this list; use `cursor` of the previous response, or none")


def parse_cluster_cursor(text: str) -> tuple[float, str]:
    """Return the negative badness and the name of a page's last cluster. Raises CursorError for an invalid text."""
    number, _, name = text.partition("/")
    try:
        negative_badness = float(number)
    except ValueError:
        raise _make_cursor_error() from None
    # Reject a name with a slash: the text may be a cursor of pairs, which has four parts.
    if not math.isfinite(negative_badness) or not name or "/" in name:
        raise _make_cursor_error()
    return negative_badness, name
