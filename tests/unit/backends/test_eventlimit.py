"""The limit of events about one object."""

from __future__ import annotations

import pytest

from dsf.backends import eventlimit
from dsf.backends.eventlimit import MAX_BURST, SECONDS_PER_EVENT, EventLimit


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the monotonic clock."""
    now = [1000.0]
    monkeypatch.setattr(eventlimit.time, "monotonic", lambda: now[0])
    return now


def test_burst_of_25_events_then_one_per_five_minutes(clock: list[float]) -> None:
    limit = EventLimit()

    def allowed_events(count: int, about: str = "a") -> int:
        return sum(limit.try_acquire(about, "Warning", "Bad", str(number)) for number in range(count))

    assert allowed_events(100) == MAX_BURST
    assert allowed_events(100, "another") == MAX_BURST
    clock[0] += SECONDS_PER_EVENT - 1
    assert allowed_events(10) == 0
    clock[0] += 1
    assert allowed_events(10) == 1
    clock[0] += 100 * SECONDS_PER_EVENT
    assert allowed_events(100) == MAX_BURST


def test_equal_event_is_repeated_after_five_minutes(clock: list[float]) -> None:
    limit = EventLimit()
    events = ["again", "again", "other", "again"]
    assert [limit.try_acquire("a", "Warning", "Bad", text) for text in events] == [True, False, True, True]
    assert limit.try_acquire("a", "Normal", "Bad", "again"), "of another type"
    assert limit.try_acquire("b", "Normal", "Bad", "again"), "of another object"
    clock[0] += SECONDS_PER_EVENT
    assert limit.try_acquire("a", "Normal", "Bad", "again"), "Kubernetes forgets events after an hour"


def test_event_limit_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventlimit, "_MAX_OBJECTS", 3)
    limit = EventLimit()
    for number in range(10):
        assert limit.try_acquire(str(number), "Normal", "Good", "x")
    assert len(limit._last_events) == 3
