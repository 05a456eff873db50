"""Which rows a response has: a filter of pairs, the length of a page, and where the next one begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from dsf.errors import CursorError, QueryError
from dsf.fleet.rowgroups import Groups
from dsf.fleet.snapshot import NO_END, RANKS, SnapshotRow
from dsf.fleet.verdict import Verdict

#: Most rows in one response.
MAX_ROWS: Final = 200


@dataclass(frozen=True)
class PairFilter:
    """Filter of pairs: all given conditions must match. `scorers` and `clusters` are names; `reason` and `stage` are
    those of failing pairs, and of pairs whose ticks were not sent; `why` is a predicate on stage and reason."""

    scorer: str | None = None
    scorers: Collection[str] | None = None
    clusters: Collection[str] | None = None
    states: Collection[Verdict] | None = None
    stage: str | None = None
    reason: str | None = None
    why: Callable[[str, str], bool] | None = None

    def chosen(self, groups: Groups, now: float) -> dict[Verdict, list[SnapshotRow]]:
        """Return the matching rows of a scorer by state; ignores the filter's scorer names."""
        if self.clusters is not None:
            groups = Groups({name: groups.rows[name] for name in self.clusters if name in groups.rows}, now)
        by_state = groups.states
        if self.reason is not None or self.stage is not None or self.why is not None:
            by_state = {}
            for state, row, why in groups.reasons:
                if self._is_for(why.stage, why.reason):
                    by_state.setdefault(state, []).append(row)
        return {
            state: state_rows for state, state_rows in by_state.items() if self.states is None or state in self.states
        }

    def _is_for(self, stage: str, reason: str) -> bool:
        if self.why is not None and not self.why(stage, reason):
            return False
        return self.stage in (None, stage) and self.reason in (None, reason)


class Cursor(NamedTuple):
    """The last row of a page: the next one begins after it."""

    rank: int
    place: float
    scorer: str
    cluster: str

    def __str__(self) -> str:
        return f"{self.rank}/{self.place!r}/{self.scorer}/{self.cluster}"

    @classmethod
    def read(cls, text: str) -> Cursor:
        """Raises CursorError."""
        try:
            rank, place, scorer, cluster = text.split("/")
            cursor = cls(int(rank), float(place), scorer, cluster)
        except ValueError:
            raise _no_cursor() from None
        if not (0 <= cursor.rank < len(RANKS) and 0 <= cursor.place <= NO_END):
            raise _no_cursor()
        return cursor


def at_most(limit: int) -> int:
    """Rows of a page. Raises QueryError for less than one."""
    if limit < 1:
        raise QueryError(f"limit: at least 1, not {limit}")
    return min(limit, MAX_ROWS)


def _no_cursor() -> CursorError:
    return CursorError("not a cursor of this list; take `cursor` of the answer before, or none")


def cluster_cursor(text: str) -> tuple[float, str]:
    """Badness and name of the last cluster of a page. Raises CursorError."""
    number, _, name = text.partition("/")
    try:
        badness = float(number)
    except ValueError:
        raise _no_cursor() from None
    # A cursor of pairs has more parts.
    if not math.isfinite(badness) or not name or "/" in name:
        raise _no_cursor()
    return badness, name
