"""Ticks that are due and that beat does not send: for which reasons, and how many of a pair's in a row.

Fields of the pair's hash, counted by `lua/dispatch.lua`. All are whole numbers, because beat may only count there:

    skips               ticks in a row that were not sent; 0 after one was
    skips_since         unix seconds of the first of them
    skip_at:<reason>    unix seconds of the newest one that was not sent for this reason
    skip_for            number of the reason of the newest one, so that beat knows when it is another one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

QUEUE_FULL: Final = "queue_full"
RATE_LIMIT: Final = "rate_limit"
PAUSED: Final = "paused"
#: The cluster's mailbox is full: what its agent measured now would only wait.
RESULTS_BEHIND: Final = "results_behind"
#: The hub holds it back: its scoring API fails its health checks, or its configuration cannot be used.
INACTIVE: Final = "inactive"
#: Beat itself was away, or Redis was: the slot is over before its tick could be sent.
EXPIRED: Final = "expired"
REASONS: Final = (QUEUE_FULL, RATE_LIMIT, PAUSED, RESULTS_BEHIND, INACTIVE, EXPIRED)

_TICKS, _SINCE = "skips", "skips_since"
_NEWEST: Final = {reason: f"skip_at:{reason}" for reason in REASONS}
#: Every field, for those who read only what they need.
FIELDS: Final = (_TICKS, _SINCE, *_NEWEST.values())

#: Ticks in a row that are not sent, after which people are told although there is still a score. One or two are how a
#: rate limit works.
SKIPS_THRESHOLD: Final = 3


@dataclass(frozen=True)
class Skips:
    """The newest ticks of a pair were not sent. `since` is unix seconds, `reason` that of the newest of them."""

    cluster: str
    reason: str
    ticks: int
    since: float

    @classmethod
    def of(cls, cluster: str, fields: Mapping[str, str]) -> Skips | None:
        """From a pair's hash; None when its newest tick was sent, or it never had one."""
        ticks = int(fields.get(_TICKS, 0))
        newest = {reason: int(fields[field]) for reason, field in _NEWEST.items() if field in fields}
        if ticks <= 0 or not newest:
            return None
        return cls(cluster, max(newest, key=newest.__getitem__), ticks, float(fields.get(_SINCE, 0)))

    def why(self, rate_limit: str | None, problem: str = "") -> str:
        """The reason as a sentence that says what to do; `rate_limit` is the scorer's, such as `10/s`, `problem` what
        keeps it from running."""
        if self.reason == RATE_LIMIT:
            return (
                f"the rate limit of this scorer, {rate_limit or 'which was removed since'}, is for all clusters "
                "together and used up by those whose turn it is; raise the limit or the interval"
            )
        if self.reason == QUEUE_FULL:
            return (
                f"the queue of {self.cluster} is full: its agent is away or does less than it is sent; check that it "
                "runs and reaches Redis"
            )
        if self.reason == RESULTS_BEHIND:
            return (
                f"results of {self.cluster} wait in its mailbox and are not taken in; check that the results workers "
                "run and keep up"
            )
        if self.reason == PAUSED:
            return "it is paused: dsf schedule list says by whom, dsf schedule resume ends it"
        if self.reason == INACTIVE:
            return problem or "it could not run then: the conditions of its DynamicScorer said why"
        return "beat or Redis was away when it was due; check the lag of the schedule"
