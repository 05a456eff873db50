"""Converts a verified result to an `Ending`, the book entries of its run. Pure functions, without access to Redis.

- A result without items is `empty` if the scoring API returned no results, and `partial` if all were refused.
- A result is `partial` if the agent or the hub refused some of its scores. A duplicate dimension is counted as refused
  (`duplicate_dimension`), but the cycle stays `ok`, because the later score replaces the earlier one.
- A successful cycle with refused or replaced scores has a remark with the reason.
- A score that is too large for one object fails the whole cycle, because half of the items would rank clusters wrongly.
- A result with implausible times fails, so that users see why the pair has no score.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from dsf.api import scorerule
from dsf.api.score import Item, compute_expiry, compute_validity
from dsf.api.scoringresponse import REFUSALS, Remark, make_remark
from dsf.api.types import USED_LABELS
from dsf.errors import CycleError, ScoreObjectTooLargeError
from dsf.messages import LARGEST_COUNT, STAGES, Result, run_time
from dsf.process.hubclock import TOLERANCE
from dsf.reasons import RefusalReason
from dsf.results.hold import hold_items
from dsf.store.history import HistoryEntry
from dsf.store.pairs import PairFailure, PairScore
from dsf.store.registry import ScorerRecord
from dsf.store.runs import Ending

# One result of the scoring API: the labels that scores use, and the score as the scoring API returned it.
_LabelledScore = tuple[dict[str, str], float]

_COUNT_NAME_PATTERN = re.compile(r"[a-z0-9_]{1,64}")
_SCORE_LABELS: Final = frozenset(USED_LABELS)

#: Failure reasons for results that the hub refuses.
CLOCK_SKEW = "clock_skew"
STALE = "stale"


class _ScoredResult(NamedTuple):
    """The score of a successful result, with its counts and remark."""

    outcome: str
    score: PairScore
    refusal_counts: dict[str, int]
    clamped: int
    remark: Remark | None


def make_ending(
    result: Result,
    scorer: ScorerRecord,
    *,
    now: float,
    factor: float = 1.0,
    interval: int | None = None,
    published_score: PairScore | None = None,
) -> Ending:
    """Return the book entries of `result`.

    `now` is unix seconds by the hub's clock. `factor` multiplies every validity. `interval` is the overriding interval
    in seconds, or None. `published_score` is the current score of the pair if its scorer has a hold.
    """
    skew_text = _describe_clock_skew(result, now)
    if skew_text is not None:
        return _make_failure(result, scorer, CycleError("publish", CLOCK_SKEW, skew_text), now, refusal="stale")
    if result.outcome == "error":
        error = CycleError(result.stage, result.reason or "unknown", result.message)
        return _make_failure(result, scorer, error, now)
    if result.outcome == "skipped":
        reason = result.reason or "unknown"
        counters: dict[str, float] = {"n:skipped:" + reason: 1}
        return _make_ending(result, scorer, "skipped", counters, reason=reason, message=result.message)
    validity = compute_validity(interval or scorer.interval, scorer.validity, scorer.interval)
    valid_until = compute_expiry(min(result.at, now), validity, factor)
    if now > valid_until:
        message = (
            f"measured {now - result.at:.0f} s before it arrived, but its score is valid for "
            f"{validity * factor:.0f} s only; "
            "check that the service results keeps up with the clusters' mailboxes"
        )
        return _make_failure(result, scorer, CycleError("publish", STALE, message), now, refusal="stale")
    try:
        scored_result = _make_scored_result(result, scorer, valid_until, now, published_score)
    except CycleError as error:
        return _make_failure(result, scorer, error, now)
    return _make_success(result, scorer, scored_result)


def make_ending_without_room(result: Result, scorer: ScorerRecord, now: float) -> Ending:
    """Return the ending of a result whose score exceeds its namespace's share of Redis."""
    owner = f"namespace {scorer.namespace}" if scorer.namespace else "its namespace"
    message = (
        f"the scores of {owner} have their share of Redis, {scorer.score_room // 1024} KiB, and one cluster at most "
        "half of it, and this one would exceed it: return fewer results or shorter labels, or give Redis more memory "
        "(the chart's redis.maxMemory)"
    )
    return _make_failure(result, scorer, CycleError("publish", "too_large", message), now)


def compute_score_digest(score_name: str, items: Iterable[Item]) -> str:
    """Return a short hash of the name and the items, which does not depend on the order of the items."""
    text = repr((score_name, sorted(items)))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def is_plausible(result: Result, now: float) -> bool:
    """Return True if the times of this result are consistent with the hub's clock, which shows `now` (unix seconds)."""
    return _describe_clock_skew(result, now) is None


def _describe_clock_skew(result: Result, now: float) -> str | None:
    """Return why the times of this result are implausible, or None."""
    scheduled_at = run_time(result.run)
    if result.at > now + TOLERANCE:
        side, difference = "ahead of", result.at - now
    elif scheduled_at > now + TOLERANCE:
        # The run began before the hub's or the agent's clock was corrected.
        return (
            f"the run was scheduled {scheduled_at - now:.0f} s ahead of the hub's clock: that clock was set back, or "
            "that "
            f"of cluster {result.cluster} was ahead; synchronise both (NTP)"
        )
    elif result.at < scheduled_at - TOLERANCE:
        side, difference = "behind", scheduled_at - result.at
    else:
        return None
    return (
        f"the clock of cluster {result.cluster} is {difference:.0f} s {side} the hub's, more than the tolerated "
        f"{TOLERANCE:.0f} s; synchronise it (NTP)"
    )


def _make_scored_result(
    result: Result, scorer: ScorerRecord, valid_until: float, now: float, published_score: PairScore | None
) -> _ScoredResult:
    """Return the score of a successful result. Raises CycleError if it is too large."""
    latest_results = _drop_duplicates(result.results)
    refusal_counts: Counter[str] = Counter()
    for name, refused_count in result.refused.items():
        if refused_count:
            refusal_counts[name if name in REFUSALS else "other"] += refused_count
    is_partial = result.outcome == "partial" or bool(refusal_counts)
    items: Sequence[Item] = ()
    clamped_count = 0
    counted_results: Sequence[tuple[Mapping[str, str], float]] = result.results
    refused_count, replaced_count, example = sum(refusal_counts.values()), 0, ""
    if scorer.is_published:
        try:
            rule_items = scorerule.build_rule_items(counted_results, scorer, result.cluster)
        except ScoreObjectTooLargeError as error:
            raise CycleError("publish", "too_large", str(error)) from None
        counted_results, built_items = rule_items.results, rule_items.built
        items, clamped_count = built_items.items, built_items.clamped
        is_partial = is_partial or bool(built_items.refusal_counts)
        refusal_counts += built_items.refusal_counts
        replaced_count, example = built_items.duplicates, built_items.duplicate
    else:
        replaced_count = len(counted_results) - len(latest_results)
    if replaced_count:
        refusal_counts[RefusalReason.DUPLICATE_DIMENSION] = replaced_count
    outcome = "partial" if is_partial else "ok" if latest_results else "empty"
    remark = make_remark(
        refusal_counts,
        refused_count + len(counted_results),
        example=example,
        series_count=result.counts.get("series"),
        note=result.message,
    )
    # All values were validated above.
    score = PairScore.model_construct(
        run=result.run,
        score_name=scorer.score_name,
        at=min(result.at, now),
        valid_until=valid_until,
        results=latest_results,
        items=list(items),
        held={},
    )
    if published_score is not None:
        score = hold_items(score, published_score, scorer, result.cluster)
    return _ScoredResult(outcome, score, refusal_counts, clamped_count, remark)


def _drop_duplicates(results: Sequence[_LabelledScore]) -> list[_LabelledScore]:
    """Return the results with only the labels that scores use, and the last result of each set of labels.

    The agent's metrics use the last of several duplicates, too.
    """
    latest_results: dict[frozenset[tuple[str, str]], _LabelledScore] = {}
    for labels, value in results:
        is_clean = _SCORE_LABELS.issuperset(labels) and all(labels.values())
        used_labels = labels if is_clean else {name: labels[name] for name in USED_LABELS if labels.get(name)}
        latest_results[frozenset(used_labels.items())] = used_labels, value
    return list(latest_results.values())


def _make_success(result: Result, scorer: ScorerRecord, scored_result: _ScoredResult) -> Ending:
    """Return the ending of a cycle with a score."""
    score, remark = scored_result.score, scored_result.remark
    adjustment_counts = {
        "refused": min(sum(scored_result.refusal_counts.values()), LARGEST_COUNT),
        "clamped": scored_result.clamped,
        "held": len(score.held),
    }
    adjustment_counts = {name: number for name, number in adjustment_counts.items() if number}
    counters: dict[str, float] = {"n:" + scored_result.outcome: 1}
    counters |= {
        "n:refused:" + reason: min(number, LARGEST_COUNT) for reason, number in scored_result.refusal_counts.items()
    }
    counters |= {"n:" + name: number for name, number in adjustment_counts.items() if name != "refused"}
    reason, message = (remark.reason, remark.message) if remark else ("", "")
    counts = {"items": len(score.items), "results": len(score.results), **adjustment_counts}
    ending = _make_ending(
        result,
        scorer,
        scored_result.outcome,
        counters,
        reason=reason,
        message=message,
        counts=counts,
        value=_compute_value(score),
    )
    at = run_time(result.run)
    return ending._replace(
        score=score,
        digest=compute_score_digest(score.score_name, score.items),
        remark=PairFailure(run=result.run, stage="", reason=reason, message=message, at=at) if reason else None,
    )


def _make_failure(result: Result, scorer: ScorerRecord, error: CycleError, now: float, refusal: str = "") -> Ending:
    """Return the ending of a failed cycle. `refusal` is the reason if the hub refuses the result."""
    stage, reason, message = error.stage, error.reason, error.message
    counters: dict[str, float] = {"n:error": 1, f"n:error:{stage}:{reason}": 1}
    ending = _make_ending(result, scorer, "error", counters, stage=stage, reason=reason, message=message)
    failure = PairFailure(run=result.run, stage=stage, reason=reason, message=message, at=now)
    return ending._replace(failure=failure, refusal=refusal)


def _make_ending(
    result: Result,
    scorer: ScorerRecord,
    outcome: str,
    counters: dict[str, float],
    *,
    stage: str = "",
    reason: str = "",
    message: str = "",
    counts: Mapping[str, int] = MappingProxyType({}),
    value: float | None = None,
) -> Ending:
    """Return an ending with the fields that all outcomes share."""
    # Limit each duration, because an absurd one would distort the sum of all durations permanently.
    timings = {name: min(result.timings[name], 86_400.0) for name in STAGES if name in result.timings}
    for name, seconds in timings.items():
        counters[f"t:{name}:sum"] = float(seconds)
        counters[f"t:{name}:count"] = 1
    return Ending(
        cluster=result.cluster,
        scorer=result.scorer,
        run=result.run,
        outcome=outcome,
        history=HistoryEntry.model_construct(
            run=result.run,
            at=run_time(result.run),
            outcome=outcome,
            stage=stage,
            reason=reason,
            message=message,
            timings={name: round(seconds, 6) for name, seconds in timings.items()},
            counts={**_select_counts(result.counts), **counts},
            value=value,
        ),
        failure_threshold=scorer.when_failing.threshold,
        is_written=scorer.is_published,
        namespace=scorer.namespace,
        room=scorer.score_room,
        counters=counters,
    )


def _compute_value(score: PairScore) -> float | None:
    """Return the value of a score in charts: the mean of its items, or of its results if it has no items."""
    numbers: list[float] = [value for _, value in score.items] or [value for _, value in score.results]
    if not numbers:
        return None
    # Six digits suffice for display and save memory, because the history stores fifty values per pair. Divide before
    # adding, because the sum of very large numbers is infinite.
    return float(f"{sum(value / len(numbers) for value in numbers):.6g}")


def _select_counts(counts: dict[str, int]) -> dict[str, int]:
    """Return an agent's counts for the history, limited in number and size."""
    valid_counts = [
        (name, number)
        for name, number in counts.items()
        if _COUNT_NAME_PATTERN.fullmatch(name) and number <= LARGEST_COUNT
    ]
    return dict(valid_counts[:16])
