"""Which value the claim should have: a state machine without input or output.

- No policies: `empty`, at once.
- A policy that is not compliant: `noncompliant`, at once.
- All policies compliant: `compliant`, but only when every look has found that for the whole stable time. Until then
  the claim stays as it is. So does a claim that already says `compliant` when the watcher starts: a restart is no
  reason to move workloads away.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Compliance(StrEnum):
    """What a look at all policies found; also the values of the claim."""

    EMPTY = "empty"
    NONCOMPLIANT = "noncompliant"
    COMPLIANT = "compliant"


@dataclass(frozen=True)
class State:
    """What is known from the looks so far. A look that failed changes nothing: leave the state as it is."""

    #: Seconds of uninterrupted compliance before the claim may say so.
    stable: float
    #: What the newest look found; None before the first.
    seen: Compliance | None = None
    #: When (on the caller's monotonic clock) the look ended that saw the present compliance first.
    since: float | None = None
    #: The present compliance has lasted for the stable time.
    settled: bool = False
    #: Something else was seen after the last compliance that lasted, or since the start: then a claim that still says
    #: `compliant`, because it could not be written, is wrong.
    interrupted: bool = False

    def observe(self, seen: Compliance, asked: float, answered: float) -> State:
        """The state after a look, with the seconds of a clock that never goes back before and after it.

        What a look finds was so at some moment between the two. So compliance has lasted at least from the end of the
        first look to the beginning of the last one, and only that counts: an API server that takes its time does not
        shorten the stable time.
        """
        if seen is not Compliance.COMPLIANT:
            return State(self.stable, seen, interrupted=True)
        since = answered if self.since is None else self.since
        settled = max(0.0, asked - since) >= self.stable
        return State(self.stable, seen, since, settled, interrupted=self.interrupted and not settled)

    def wanted(self, claim: str | None) -> Compliance | None:
        """The value to write when the claim says `claim` (None: there is no claim); None when it is right as it is."""
        if self.seen is None:
            return None
        value = self.seen
        if self.seen is Compliance.COMPLIANT and not self.settled:
            if self._may_stay(claim):
                return None
            # There are policies, and that they are complied with is not certain yet.
            value = Compliance.NONCOMPLIANT
        return None if claim == value else value

    def _may_stay(self, claim: str | None) -> bool:
        """Whether the claim stays until the stable time is over."""
        if claim == Compliance.COMPLIANT:
            return not self.interrupted
        return claim in (Compliance.EMPTY, Compliance.NONCOMPLIANT)
