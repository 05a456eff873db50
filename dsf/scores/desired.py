"""Computes the desired score object of one pair at a given time. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cached_property
from typing import Any, Literal

from dsf.api.naming import sanitize_resource_name
from dsf.api.score import Item, compute_expiry, compute_items_digest, has_expired, make_score_body, make_score_status
from dsf.api.scorerule import build_empty_items
from dsf.store.pairs import PairScore
from dsf.store.registry import ClusterRecord, ScorerRecord


class Unknown(Enum):
    """Marker for a pair whose score is not in Redis. Its object stays until its `validUntil`."""

    SCORE = "score"


UNKNOWN: Literal[Unknown.SCORE] = Unknown.SCORE


@dataclass(frozen=True)
class DesiredScore:
    """A desired AddOnPlacementScore. `valid_until` is unix seconds."""

    cluster: ClusterRecord
    scorer: ScorerRecord
    items: tuple[Item, ...]
    valid_until: float

    @cached_property
    def name(self) -> str:
        """Name of the object."""
        return sanitize_resource_name(self.scorer.score_name)

    @cached_property
    def digest(self) -> str:
        """Hash of the items."""
        return compute_items_digest(self.items)

    def make_manifest(self) -> dict[str, Any]:
        """Return the object without its status."""
        names = self.cluster.name, self.scorer.name, self.scorer.score_name
        return make_score_body(*names, owner_uid=self.cluster.uid)

    def make_status(self, created_at: float) -> dict[str, Any]:
        """Return the status of the object; `created_at` is the creation time of the object (unix seconds)."""
        return make_score_status(self.items, valid_until=_make_time(self.valid_until), now=_make_time(created_at))


def compute_desired_score(
    score: PairScore | None,
    failing: int,
    scorer: ScorerRecord,
    cluster: ClusterRecord,
    *,
    now: float,
    factor: float,
    current_valid_until: float = 0.0,
) -> DesiredScore | Unknown | None:
    """Return the object desired at `now`; None if no object may exist, UNKNOWN if Redis has no score to decide by.

    `failing` is the number of consecutive failed cycles. `factor` extends the validity of objects; the validity of
    `score` is already extended. `current_valid_until` is the end of the current object's validity. All times are unix
    seconds.
    """
    if not scorer.is_published:
        return None
    policy = scorer.when_failing
    # An Inactive scorer gets no ticks, so its failures are no longer counted, but its failed health checks count as
    # failing. A suspended scorer gets no ticks regardless of its health.
    is_inactive = scorer.health == "Inactive" and not scorer.suspended
    is_failing = failing >= policy.failure_threshold or is_inactive
    if policy.behavior != "Keep" and is_failing:
        if policy.value is None:
            return None
        # The value is published as long as cycles fail, so its validity begins now and is renewed.
        published_items = (tuple(score.items) if score is not None else ()) or build_empty_items(
            scorer, cluster.name, policy.value
        )
        items = tuple((name, policy.value) for name, _ in published_items)
        # Do not renew the object of a suspended scorer, which runs no cycles: the object expires like any score.
        valid_until = current_valid_until if scorer.suspended else compute_expiry(now, scorer.validity, factor)
        return None if has_expired(valid_until, now) else DesiredScore(cluster, scorer, items, valid_until)
    if score is None:
        return UNKNOWN
    if has_expired(score.valid_until, now):
        return None
    # Write empty items even if every result was rejected, because OCM would read a missing score as 0.
    published_items_or_default = tuple(score.items) or build_empty_items(scorer, cluster.name, scorer.when_empty.value)
    return DesiredScore(cluster, scorer, published_items_or_default, score.valid_until)


def compute_validity_factor(validities: Iterable[tuple[int, int]], write_rate: float) -> float:
    """Return the factor that extends validities so that renewals use at most half of the write rate.

    `validities` are (number of objects, seconds). The computation assumes that an object is renewed at half of its
    validity.
    """
    renewals = sum(number / (seconds / 2) for number, seconds in validities)
    return max(1.0, renewals / (write_rate / 2))


def _make_time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
