"""Until when a score may be used.

The fleet's factor stretches a validity once, where the score is stored: every reader sees the same end.
"""

from __future__ import annotations


def valid_until(at: float, validity: float, factor: float) -> float:
    """Until when (unix seconds) a score of the moment `at` may be used. `factor` is `Writes.validity_factor`."""
    return at + validity * factor


def has_expired(until: float, now: float) -> bool:
    """Whether a score that is valid until then must not be used any more at `now`."""
    return until <= now
