"""Places of pairs in the indexes of the read model, and their states at a time.

A place is the rank of a state * SPAN + a time (`lua/model.lua`). For successful pairs it is the time at which the score
expires, so expired ones form a separate range: readers need not wait for the sweeper to move them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from dsf.errors import CursorError, QueryError
from dsf.fleet.verdict import Verdict
from dsf.store.model import RANKS, SPAN

_RANK: Final = {Verdict(name): rank for rank, name in enumerate(RANKS)}

_EMPTY, _OK = _RANK[Verdict.EMPTY], _RANK[Verdict.OK]
# Segment number of each rank, for unexpired pairs; and the state of each segment.
_NUMBERS: Final = (0, 1, 4, 5, 6, 7, 8)
_STATES: Final = (
    Verdict.FAILING,
    Verdict.EXPIRED,
    Verdict.EXPIRED,
    Verdict.EXPIRED,
    Verdict.SKIPPED,
    Verdict.NEVER,
    Verdict.PAUSED,
    Verdict.EMPTY,
    Verdict.OK,
)


class Segment(NamedTuple):
    """A range of places whose pairs are in one state now; `low` and `high` in ZCOUNT's format."""

    number: int
    state: Verdict
    low: str
    high: str


def segments(now: float, states: Iterable[Verdict] | None = None) -> list[Segment]:
    """The ranges at `now` (unix seconds), worst first; only those of these states, by default of all."""
    wanted = set(Verdict) if states is None else set(states)
    cut = max(0.0, min(now, SPAN - 1))
    ranges = [
        _whole(Verdict.FAILING),
        _whole(Verdict.EXPIRED),
        (Verdict.EXPIRED, *_until(Verdict.OK, cut)),
        (Verdict.EXPIRED, *_until(Verdict.EMPTY, cut)),
        _whole(Verdict.SKIPPED),
        _whole(Verdict.NEVER),
        _whole(Verdict.PAUSED),
        (Verdict.EMPTY, *_after(Verdict.EMPTY, cut)),
        (Verdict.OK, *_after(Verdict.OK, cut)),
    ]
    return [Segment(number, *one) for number, one in enumerate(ranges) if one[0] in wanted]


def segment_of(place: float, now: float) -> int:
    """Number of the segment of a place at `now`."""
    rank = int(place // SPAN)
    if rank >= _EMPTY and place - rank * SPAN <= now:
        return 2 if rank == _OK else 3
    return _NUMBERS[rank]


def judged(place: float, now: float) -> Verdict:
    """The state of a pair at this place at `now`."""
    return _STATES[segment_of(place, now)]


def states_of(names: Iterable[str]) -> list[Verdict]:
    """States by their names. Raises QueryError."""
    try:
        return [Verdict(name) for name in names]
    except ValueError:
        raise QueryError(f"no such state; there are {', '.join(RANKS)}") from None


class Cursor(NamedTuple):
    """The last row of a page: the next one begins after it."""

    segment: int
    place: float
    scorer: str
    cluster: str

    def __str__(self) -> str:
        return f"{self.segment}/{self.place!r}/{self.scorer}/{self.cluster}"

    @classmethod
    def read(cls, text: str) -> Cursor:
        """Raises CursorError."""
        try:
            segment, place, scorer, cluster = text.split("/")
            found = cls(int(segment), float(place), scorer, cluster)
        except ValueError:
            raise no_cursor() from None
        if not (0 <= found.segment < len(_STATES) and 0 <= found.place < len(RANKS) * SPAN):
            raise no_cursor()
        return found


def no_cursor() -> CursorError:
    """The error for an invalid cursor."""
    return CursorError("not a cursor of this list; take `cursor` of the answer before, or none")


def _whole(state: Verdict) -> tuple[Verdict, str, str]:
    base = _RANK[state] * SPAN
    return state, str(base), f"({base + SPAN}"


def _until(state: Verdict, cut: float) -> tuple[str, str]:
    base = _RANK[state] * SPAN
    return str(base), f"{base + cut:.6f}"


def _after(state: Verdict, cut: float) -> tuple[str, str]:
    base = _RANK[state] * SPAN
    return f"({base + cut:.6f}", f"({base + SPAN}"
