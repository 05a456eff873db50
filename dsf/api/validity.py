"""Validity of scores.

The fleet's factor extends a validity once, when the score is stored, so that all readers see the same expiry.
"""

from __future__ import annotations


def default_validity(interval: int) -> int:
    """Default validity in seconds: 3 intervals, at least 300, after which OCM also considers a silent cluster as lost
    (5 leases of 60 s)."""
    return max(3 * interval, 300)


def valid_until(at: float, validity: float, factor: float) -> float:
    """Expiry (unix seconds) of a score of the time `at`. `factor` is `Writes.validity_factor`."""
    return at + validity * factor


def validity_at(interval: int, validity: int, declared: int) -> int:
    """Seconds of validity at this interval. One that was not chosen follows the interval where a user made it longer
    than `declared`: scores would expire before the next run."""
    return max(validity, default_validity(interval)) if validity == default_validity(declared) else validity


def gap(interval: int, validity: int, declared: int) -> str:
    """A sentence where scores expire before the next run at this interval, which only a chosen validity does; else
    empty."""
    seconds = validity_at(interval, validity, declared)
    if seconds >= interval:
        return ""
    return f"scores expire after {seconds}s (validitySeconds), before the next cycle at an interval of {interval}s"


def has_expired(until: float, now: float) -> bool:
    """Whether a score with this expiry has expired at `now`."""
    return until <= now
