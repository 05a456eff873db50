"""Due ticks that beat does not send: reasons, and number of consecutive ones per pair.

Fields of the pair's hash, counted by `lua/dispatch.lua`. All are integers, because beat may only increment there:

    skips               consecutive ticks not sent; 0 after a sent one
    skips_since         unix seconds of the first of them
    skip_at:<reason>    unix seconds of the newest one skipped for this reason
    skip_for            number of the newest one's reason, for beat to detect a change
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

QUEUE_FULL: Final = "queue_full"
RATE_LIMIT: Final = "rate_limit"
PAUSED: Final = "paused"
#: The cluster's mailbox is full: a new result would only wait.
RESULTS_BEHIND: Final = "results_behind"
#: Disabled by the hub: its scoring API fails health checks, or its configuration is unusable.
INACTIVE: Final = "inactive"
#: Beat or Redis was down: the slot passed before its tick could be sent.
EXPIRED: Final = "expired"
REASONS: Final = (QUEUE_FULL, RATE_LIMIT, PAUSED, RESULTS_BEHIND, INACTIVE, EXPIRED)

_TICKS, _SINCE = "skips", "skips_since"
_NEWEST: Final = {reason: f"skip_at:{reason}" for reason in REASONS}
#: Every field, for selective reads.
FIELDS: Final = (_TICKS, _SINCE, *_NEWEST.values())

#: Consecutive skips from which they are reported despite a valid score. One or two are normal under a rate limit.
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
        """From a pair's hash; None if its newest tick was sent, or it never had one."""
        ticks = int(fields.get(_TICKS, 0))
        newest = {reason: int(fields[field]) for reason, field in _NEWEST.items() if field in fields}
        if ticks <= 0 or not newest:
            return None
        return cls(cluster, max(newest, key=newest.__getitem__), ticks, float(fields.get(_SINCE, 0)))

    def why(self, rate_limit: str | None, problem: str = "") -> str:
        """The reason and remedy as a sentence; `rate_limit` is the scorer's, e.g. `10/s`, `problem` is why it cannot
        run."""
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
