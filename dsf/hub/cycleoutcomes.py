"""Sums the outcomes of a scorer's newest cycles over its clusters, for its status. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from dsf.api.score import has_expired
from dsf.api.scorer import MAX_FAILURES, FailedCycle
from dsf.fleet.verdict import Verdict, compute_verdict
from dsf.reasons import RefusalReason
from dsf.store.pairs import PairState
from dsf.store.ticks import Skips

#: Reasons of condition Scoring for valid responses whose items are all or partly rejected.
NO_ITEMS: Final = "NoItems"
RESULTS_REFUSED: Final = "ResultsRefused"
ITEMS_REPLACED: Final = "ItemsReplaced"


@dataclass(frozen=True)
class CycleOutcomes:
    """Outcomes of a scorer's newest cycles on the clusters on which it should run."""

    #: Number of clusters with a valid score, and of those whose newest cycle failed.
    succeeding: int = 0
    failing: int = 0
    #: Number of failing clusters without a valid score from an earlier cycle.
    failing_without_score: int = 0
    #: Number of clusters whose newest cycle succeeded without items.
    empty: int = 0
    #: Number of clusters whose score expired without a newer cycle.
    expired: int = 0
    #: The newest failures, newest first, at most MAX_FAILURES.
    failures: list[FailedCycle] = field(default_factory=list)
    #: Valid responses whose items are all or partly rejected: reason of the condition, number of clusters, and
    #: `<cluster>: <sentence>` for one cluster. Clusters without a score take precedence.
    remark_reason: str = ""
    remarked: int = 0
    remark: str = ""
    #: Number of clusters whose valid score could not be written to the API server; for one of them the reason of the
    #: condition and `<cluster>: <error>`.
    unwritten: int = 0
    unwritten_reason: str = ""
    refusal: str = ""
    #: Number of clusters without a valid score because beat sends no ticks, and the skips of the longest-waiting one.
    idle: int = 0
    skips: Skips | None = None

    @classmethod
    def from_states(cls, states: Iterable[PairState], now: float) -> CycleOutcomes:
        """Sum the states of a scorer's pairs at `now` (unix seconds)."""
        counts: Counter[Verdict] = Counter()
        unwritten = failing_without_score = 0
        refusal, unwritten_reason = "", ""
        idle_skips: list[Skips] = []
        failures: list[tuple[float, FailedCycle]] = []
        remarks: dict[str, list[str]] = {}
        for state in states:
            if (write_failure := state.unwritten) is not None:
                unwritten += 1
                refusal = refusal or f"{state.cluster}: {write_failure.message}"
                unwritten_reason = unwritten_reason or write_failure.reason
            skips = state.skips
            verdict = compute_verdict(state, now)
            if verdict is Verdict.SKIPPED and skips is not None and not _is_usable(state, now):
                idle_skips.append(skips)
            else:
                # Count a skipped pair with a valid score as succeeding.
                counted_verdict = Verdict.OK if verdict is Verdict.SKIPPED else verdict
                # Do not count a score that cannot be written, because it makes Ready False.
                counts[counted_verdict] += counted_verdict is not Verdict.OK or write_failure is None
            failing_without_score += verdict is Verdict.FAILING and not _is_usable(state, now)
            if state.remark is not None and verdict in (Verdict.EMPTY, Verdict.OK):
                reason = _choose_reason(verdict, state.remark.reason)
                remarks.setdefault(reason, []).append(f"{state.cluster}: {state.remark.message}")
            if (pair_failure := state.current_failure) is not None:
                failure = FailedCycle(
                    cluster=state.cluster,
                    stage=pair_failure.stage,
                    reason=pair_failure.reason,
                    message=pair_failure.message,
                    time=datetime.fromtimestamp(int(pair_failure.at), UTC),
                )
                failures.append((pair_failure.at, failure))
        remark_reason = next(
            (reason for reason in (NO_ITEMS, ITEMS_REPLACED, RESULTS_REFUSED) if reason in remarks), ""
        )
        remark_texts = sorted(remarks.get(remark_reason, ()))
        failures.sort(key=lambda item: (-item[0], item[1].cluster))
        return cls(
            succeeding=counts[Verdict.OK],
            failing=counts[Verdict.FAILING],
            failing_without_score=failing_without_score,
            empty=counts[Verdict.EMPTY],
            expired=counts[Verdict.EXPIRED],
            failures=[failure for _, failure in failures[:MAX_FAILURES]],
            remark_reason=remark_reason,
            remarked=len(remark_texts),
            remark=remark_texts[0] if remark_texts else "",
            unwritten=unwritten,
            unwritten_reason=unwritten_reason,
            refusal=refusal,
            idle=len(idle_skips),
            skips=min(idle_skips, key=lambda skips: (skips.first_at, skips.cluster), default=None),
        )


def _choose_reason(verdict: Verdict, reason: str) -> str:
    if verdict is Verdict.EMPTY:
        return NO_ITEMS
    return ITEMS_REPLACED if reason == RefusalReason.DUPLICATE_DIMENSION else RESULTS_REFUSED


def _is_usable(state: PairState, now: float) -> bool:
    """Return True if the pair has a score that has not expired."""
    return state.last_success is not None and not has_expired(state.valid_until, now)
