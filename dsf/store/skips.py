"""Due ticks that beat does not send: reasons, and number of consecutive ones per pair.

A text of the hash `dsf.keys.SKIPS`, written by `lua/dispatch.lua` and removed when a tick is sent, is

    <consecutive ticks not sent> <unix seconds of the first> <unix seconds of the newest> <reason of the newest>
"""

from __future__ import annotations

import re
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

_TEXT: Final = re.compile(r"(\d+) (\d+) (\d+) (.+)")

#: Consecutive skips from which they are reported despite a valid score. One or two are normal under a rate limit.
SKIPS_THRESHOLD: Final = 3


@dataclass(frozen=True)
class Skips:
    """The newest ticks of a pair were not sent. `since` and `newest` are unix seconds, `reason` that of the newest."""

    cluster: str
    reason: str
    ticks: int
    since: float
    newest: float = 0.0

    @classmethod
    def of(cls, cluster: str, text: str | None) -> Skips | None:
        """From a pair's text; None if its newest tick was sent, or it never had one."""
        match = _TEXT.fullmatch(text or "")
        if match is None or match[4] not in REASONS:
            return None
        return cls(cluster, match[4], int(match[1]), float(match[2]), float(match[3]))

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
