"""The rule for the value of the claim: a state machine without input or output.

- No policies: `empty`, at once.
- A policy that is not compliant: `noncompliant`, at once.
- All policies compliant: `compliant`, but only when every poll has found that of these very policies for the whole
  stable time, and no poll failed. Until then the claim stays as it is. A claim that already says `compliant` when the
  watcher starts also stays: a restart is no reason to move workloads away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Compliance(StrEnum):
    """State of all policies together; also the values of the claim."""

    EMPTY = "empty"
    NONCOMPLIANT = "noncompliant"
    COMPLIANT = "compliant"


@dataclass(frozen=True)
class PollResult:
    """Result of one poll."""

    compliance: Compliance
    #: The policies with their uids and generations: an object with the same name may be another policy.
    policies: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True)
class State:
    """State after the polls so far."""

    #: Seconds of uninterrupted compliance before the claim may become `compliant`.
    stable: float
    #: Result of the newest poll; None before the first.
    compliance: Compliance | None = None
    #: Time (of the caller's monotonic clock) at which the first poll with the present compliance ended.
    compliance_began: float | None = None
    #: True if the present compliance has lasted for the stable time.
    settled: bool = False
    #: Policies of the newest poll.
    policies: frozenset[tuple[str, int]] = frozenset()
    #: True if another state was seen after the last lasting compliance, or since the start. Then a claim that is still
    #: `compliant`, because it could not be written, is wrong.
    interrupted: bool = False

    def observe(self, poll_result: PollResult, requested_at: float, responded_at: float) -> State:
        """Return the state after a poll, with the seconds of a clock that never goes back before and after it.

        The result of a poll was true at some moment between the two. Therefore compliance has lasted at least from the
        end of the first poll to the beginning of the last one, and only that counts: an API server that takes its time
        does not shorten the stable time. A policy that was not there before, or was another one, has yet to last.
        """
        compliance = poll_result.compliance
        if compliance is not Compliance.COMPLIANT:
            return State(self.stable, compliance, policies=poll_result.policies, interrupted=True)
        is_new = self.compliance is not None and not poll_result.policies <= self.policies
        compliance_began = responded_at if self.compliance_began is None or is_new else self.compliance_began
        settled = max(0.0, requested_at - compliance_began) >= self.stable
        interrupted = (self.interrupted or is_new) and not settled
        return State(self.stable, compliance, compliance_began, settled, poll_result.policies, interrupted)

    def missed(self) -> State:
        """Return the state after a failed poll: the meantime is unknown, so the stable time starts again."""
        return replace(self, compliance_began=None, settled=False)

    def next_claim(self, claim: str | None) -> Compliance | None:
        """Return the value to write over `claim`, the current value; None if no write is necessary.

        A `claim` of None means that the claim does not exist.
        """
        if self.compliance is None:
            return None
        value = self.compliance
        if self.compliance is Compliance.COMPLIANT and not self.settled:
            if self._may_stay(claim):
                return None
            # Policies exist, and their compliance has not lasted long enough.
            value = Compliance.NONCOMPLIANT
        return None if claim == value else value

    def _may_stay(self, claim: str | None) -> bool:
        """True if the claim stays until the stable time is over."""
        if claim == Compliance.COMPLIANT:
            return not self.interrupted
        return claim in (Compliance.EMPTY, Compliance.NONCOMPLIANT)
