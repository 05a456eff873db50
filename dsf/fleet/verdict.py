"""Derives the state of one scorer on one cluster from its row and the hub's clock.

Statuses, metrics, pages and the command line all use this definition.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from dsf.api.score import has_expired
from dsf.errors import QueryError
from dsf.store.pairs import PairState


class Verdict(StrEnum):
    """States of a pair, which is one scorer on one cluster. A pair is in exactly one state at a time.

    The states are in the order of lists, worst first. `compute_verdict` decides in another order: PAUSED takes
    precedence over all other states, because a paused pair is not expected to run.
    """

    #: The newest cycle failed or was lost, or all ticks expire in the queue.
    FAILING = "failing"
    #: The score has expired, and no cycle has failed.
    EXPIRED = "expired"
    #: Three or more ticks in a row were skipped, and no cycle has failed.
    SKIPPED = "skipped"
    #: No cycle has succeeded yet.
    NEVER_SUCCEEDED = "never"
    #: Paused by a user or suspended by its DynamicScorer.
    PAUSED = "paused"
    #: The newest cycle succeeded without items, so there is no score.
    EMPTY = "empty"
    #: The newest cycle succeeded, and its score is valid.
    OK = "ok"


def compute_verdict(row: PairState, now: float, *, is_paused: bool = False) -> Verdict:
    """Return the state of a row at `now` (unix seconds). `is_paused` is True if the schedule pauses the pair."""
    if is_paused:
        return Verdict.PAUSED
    if row.is_failing:
        return Verdict.FAILING
    if row.is_skipped:
        return Verdict.SKIPPED
    if row.last_success is None:
        return Verdict.NEVER_SUCCEEDED
    if has_expired(row.valid_until, now):
        return Verdict.EXPIRED
    return Verdict.EMPTY if row.items == 0 else Verdict.OK


def parse_states(names: Iterable[str]) -> list[Verdict]:
    """Return the states with these names. Raises QueryError if there is no such state."""
    try:
        return [Verdict(name) for name in names]
    except ValueError:
        raise QueryError(f"no such state; there are {', '.join(Verdict)}") from None
