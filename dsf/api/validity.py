"""Validity of scores.

The fleet's factor extends a validity once, when the score is stored, so that all readers see the same expiry.
"""

from __future__ import annotations


def valid_until(at: float, validity: float, factor: float) -> float:
    """Expiry (unix seconds) of a score of the time `at`. `factor` is `Writes.validity_factor`."""
    return at + validity * factor


def has_expired(until: float, now: float) -> bool:
    """Whether a score with this expiry has expired at `now`."""
    return until <= now
