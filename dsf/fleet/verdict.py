"""State of one scorer on one cluster, shared by statuses, exporter, pages and command line.

`lua/model.lua` of the store implements the same for scripts; a test compares both.
"""

from __future__ import annotations

from enum import StrEnum

from dsf.api.validity import has_expired
from dsf.store.pairs import PairState
from dsf.store.skips import SKIPS_THRESHOLD


class Verdict(StrEnum):
    """Exactly one of these at any moment, worst first.

    Paused takes precedence: a paused pair is not expected to run.
    """

    #: The newest cycle failed or was lost, or all ticks expire in the queue.
    FAILING = "failing"
    #: No failure, but no cycle ran until the score expired.
    EXPIRED = "expired"
    #: No failure, but no ticks: three or more in a row were not sent.
    SKIPPED = "skipped"
    #: No cycle has succeeded yet.
    NEVER = "never"
    #: Paused by a user or suspended by its DynamicScorer.
    PAUSED = "paused"
    #: The newest cycle succeeded without items, so there is no score.
    EMPTY = "empty"
    #: The newest cycle succeeded, and its score is valid.
    OK = "ok"


def verdict(state: PairState, now: float, *, is_paused: bool = False) -> Verdict:
    """The verdict at `now` (unix seconds). `is_paused`: by entry and overrides."""
    if is_paused:
        return Verdict.PAUSED
    # Also if the stored reason has been removed.
    if state.failing > 0 or state.trouble is not None:
        return Verdict.FAILING
    skips = state.skips
    if skips is not None and skips.ticks >= SKIPS_THRESHOLD:
        return Verdict.SKIPPED
    if state.last_success is None:
        return Verdict.NEVER
    if has_expired(state.valid_until, now):
        return Verdict.EXPIRED
    return Verdict.EMPTY if state.items == 0 else Verdict.OK
