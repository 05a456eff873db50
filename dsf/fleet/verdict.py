"""How one scorer does on one cluster: the one judgement that statuses, the exporter and the command line count by."""

from __future__ import annotations

from enum import StrEnum

from dsf.api.validity import has_expired
from dsf.store.pairs import PairState


class Verdict(StrEnum):
    """Exactly one of these at any moment."""

    #: The newest cycle failed or was lost, or all expire in the queue.
    FAILING = "failing"
    #: No cycle has succeeded yet.
    WAITING = "waiting"
    #: Nothing failed, but no cycle ran until the score expired.
    EXPIRED = "expired"
    #: The newest cycle succeeded and brought nothing: no items is not a score.
    EMPTY = "empty"
    #: The newest cycle succeeded, and its score may be used.
    SUCCEEDING = "succeeding"


def verdict(state: PairState, now: float) -> Verdict:
    """The verdict at `now` (unix seconds)."""
    # Also when the stored reason is gone.
    if state.failing > 0 or state.trouble is not None:
        return Verdict.FAILING
    if state.last_success is None:
        return Verdict.WAITING
    if has_expired(state.valid_until, now):
        return Verdict.EXPIRED
    return Verdict.EMPTY if state.items == 0 else Verdict.SUCCEEDING
