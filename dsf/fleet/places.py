"""Where pairs stand in the indexes of the read model, and what that says at a moment.

A place is the rank of a state * SPAN + a time (`lua/model.lua`). What succeeded stands by the time at which its score
expires, so what has expired by now is a range of its own: readers need not wait for the sweeper to move it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from dsf.errors import CursorError, QueryError
from dsf.fleet.verdict import Verdict
from dsf.store.model import RANKS, SPAN

_RANK: Final = {Verdict(name): rank for rank, name in enumerate(RANKS)}


class Segment(NamedTuple):
    """A range of places whose pairs are in one state now; `low` and `high` as ZCOUNT takes them."""

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


def judged(place: float, now: float) -> tuple[int, Verdict]:
    """Number of the segment that a place is in at `now`, and the state of the pair there."""
    rank = int(place // SPAN)
    state = Verdict(RANKS[rank])
    if state in (Verdict.OK, Verdict.EMPTY) and place - rank * SPAN <= now:
        return (2 if state is Verdict.OK else 3), Verdict.EXPIRED
    return _NUMBERS[state], state


def states_of(names: Iterable[str]) -> list[Verdict]:
    """States by their names. Raises QueryError."""
    try:
        return [Verdict(name) for name in names]
    except ValueError:
        raise QueryError(f"no such state; there are {', '.join(RANKS)}") from None


_NUMBERS: Final = {
    Verdict.FAILING: 0,
    Verdict.EXPIRED: 1,
    Verdict.SKIPPED: 4,
    Verdict.NEVER: 5,
    Verdict.PAUSED: 6,
    Verdict.EMPTY: 7,
    Verdict.OK: 8,
}


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
            return cls(int(segment), float(place), scorer, cluster)
        except ValueError:
            raise CursorError("not a cursor of this list; take `cursor` of the answer before, or none") from None


def _whole(state: Verdict) -> tuple[Verdict, str, str]:
    base = _RANK[state] * SPAN
    return state, str(base), f"({base + SPAN}"


def _until(state: Verdict, cut: float) -> tuple[str, str]:
    base = _RANK[state] * SPAN
    return str(base), f"{base + cut:.6f}"


def _after(state: Verdict, cut: float) -> tuple[str, str]:
    base = _RANK[state] * SPAN
    return f"({base + cut:.6f}", f"({base + SPAN}"
