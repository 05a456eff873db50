"""Holding scores back: `spec.execution.hold`. Pure functions of values and times, so that the past can be replayed.

The rule, for each item of a score: a value is published once it and all values since some moment were at least
`min_change` away from the published one, on the same side, for `for_seconds`. A value that is nearer ends that time.
An item without a published value, because it is new or its score is out of date, is published at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Waiting(NamedTuple):
    """The newest value of an item, while another one is published."""

    #: -100 to 100.
    value: int
    #: Unix seconds since which all values were far enough away, on this side; None while the value is too near.
    since: float | None
    #: Least distance from the published value since then.
    away: int


def waiting_for(
    published: int, value: int, before: Waiting | None, at: float, *, min_change: int, for_seconds: float
) -> Waiting | None:
    """Return the state of a `value` that is held back; None if it is published.

    `at` is when it was measured (unix seconds), `before` what was remembered of the item until then. Times need not
    ascend: a clock that was set back starts `for_seconds` anew, and never ends it early.
    """
    move = value - published
    if move == 0:
        return None
    away = abs(move)
    if away < min_change:
        return Waiting(value, None, away)
    since = at
    # `away`: the rule may have become stricter meanwhile.
    if before is not None and before.since is not None and before.away >= min_change:
        is_same_side = (before.value > published) == (move > 0)
        if is_same_side:
            since, away = min(before.since, at), min(before.away, away)
    return None if at - since >= for_seconds else Waiting(value, since, away)


def hold_back(
    published: Mapping[str, int],
    measured: Mapping[str, int],
    waiting: Mapping[str, Waiting],
    at: float,
    *,
    min_change: int,
    for_seconds: float,
) -> tuple[dict[str, int], dict[str, Waiting]]:
    """The values to publish for the items of `measured`, in their order, and what waits.

    `published` are the values in force, `waiting` what the last call returned; both are empty before the first score,
    and when the last one is out of date. `at` as in `waiting_for`.
    """
    values: dict[str, int] = {}
    held: dict[str, Waiting] = {}
    for name, value in measured.items():
        values[name] = value
        if name not in published:
            continue
        wait = waiting_for(
            published[name], value, waiting.get(name), at, min_change=min_change, for_seconds=for_seconds
        )
        if wait is not None:
            values[name], held[name] = published[name], wait
    return values, held


def due(waiting: Waiting, *, min_change: int, for_seconds: float) -> float | None:
    """From when on a cycle publishes what waits, if it stays as far away (unix seconds); None while it is too near."""
    if waiting.since is None or waiting.away < min_change:
        return None
    return waiting.since + for_seconds


def in_words(min_change: int, for_seconds: int) -> str:
    """The rule in one sentence without a full stop."""
    lasts = f", if it lasts {for_seconds} s" if for_seconds else ""
    return f"a change is published from {min_change} {'point' if min_change == 1 else 'points'} on{lasts}"
