"""Writes of a status that changes all the time."""

from __future__ import annotations

import itertools

from dsf.hub.statusreconcilers import MAX_BURST, SECONDS_PER_WRITE, StatusWriteLimit


def test_status_of_an_alternating_scorer_is_written_every_few_seconds() -> None:
    now = 100.0
    pace = StatusWriteLimit[str](lambda: now)
    due: float | None = None
    writes = []
    for _ in range(600):
        at = now + pace.reserve_write("s")
        due = at if due is None else min(due, at)
        if due <= now:
            writes.append(now)
            due = None
        now += 0.25
    assert writes[:MAX_BURST] == [100.0 + 0.25 * number for number in range(MAX_BURST)]
    assert len(writes) <= MAX_BURST + 150 / SECONDS_PER_WRITE + 1
    assert max(later - earlier for earlier, later in itertools.pairwise(writes)) <= SECONDS_PER_WRITE + 0.25


def test_status_that_changes_seldom_is_written_at_once() -> None:
    now = 0.0
    pace = StatusWriteLimit[str](lambda: now)
    for _ in range(20):
        assert pace.reserve_write("s") == 0.0
        now += SECONDS_PER_WRITE
    assert pace.reserve_write("other") == 0.0


def test_removed_scorers_are_forgotten() -> None:
    pace = StatusWriteLimit[str](lambda: 0.0)
    delays = [pace.reserve_write("s") for _ in range(MAX_BURST + 1)]
    assert delays == [0.0] * MAX_BURST + [SECONDS_PER_WRITE]
    pace.retain({"other"})
    assert pace.reserve_write("s") == 0.0
