"""Slots: the times at which a pair runs. Pure functions.

A pair has a phase within its interval, made from its name, so that 10,000 entries created together do not fire together
and every beat computes the same slots. A slot is `phase + k * interval`: runs do not drift. Times are unix seconds,
phases have whole milliseconds, intervals whole seconds.
"""

from __future__ import annotations

import hashlib
import math

#: Due times are moved by microseconds to mark a change, and clocks are read slightly later; within a millisecond of a
#: slot counts as on it.
TOLERANCE = 0.001
#: Max. clock difference of two hosts in seconds: what is due now must also be due by the other's clock.
CLOCK_SKEW = 60.0


def _phase_ms(pair: str, interval: int) -> int:
    digest = hashlib.blake2b(pair.encode(), digest_size=8).digest()
    return int.from_bytes(digest) % (interval * 1000)


def phase(pair: str, interval: int) -> float:
    """Seconds after a multiple of `interval` (0 <= phase < interval) at which this pair runs."""
    return _phase_ms(pair, interval) / 1000


def _slot(pair: str, interval: int, at: float, ahead: int) -> float:
    # In whole milliseconds, so that a slot is the same float however computed.
    length, offset = interval * 1000, _phase_ms(pair, interval)
    number = (math.floor((at + TOLERANCE) * 1000) - offset) // length + ahead
    return (number * length + offset) / 1000


def current_slot(pair: str, interval: int, at: float) -> float:
    """The newest slot that is not after `at`."""
    return _slot(pair, interval, at, 0)


def next_slot(pair: str, interval: int, after: float) -> float:
    """The first slot after `after`; it is at most one interval away."""
    return _slot(pair, interval, after, 1)


def is_slot(pair: str, interval: int, at: float) -> bool:
    """Whether `at` is a slot of this pair."""
    return abs(current_slot(pair, interval, at) - at) <= TOLERANCE


def scheduled_time(pair: str, interval: int, due: float, now: float) -> float:
    """The scheduled time of a run that was due at `due` and is sent at `now`: a later slot passed meanwhile wins,
    because missed slots are not caught up."""
    return max(due, current_slot(pair, interval, now))


def next_due(pair: str, interval: int, due: float, now: float) -> float:
    """Next due time of a pair due at `due` that runs at `now`.

    After a run on its slot: the first slot after now. After a run at another moment (the first one, after a resume or a
    shortened interval): the first slot at least half an interval away, to keep runs apart.
    """
    if is_slot(pair, interval, due):
        return next_slot(pair, interval, max(due, now))
    # A slot exactly half an interval away counts, hence the step back from "after" to "not before".
    return next_slot(pair, interval, max(due, now) + interval / 2 - 2 * TOLERANCE)
