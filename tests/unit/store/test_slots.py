"""Slots: stable, spread over the interval, never missed and never doubled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsf.store.entries import (
    SLOT_TOLERANCE,
    compute_current_tick_time,
    compute_next_due,
    compute_next_tick_time,
    compute_scheduled_time,
    is_slot,
)

PAIRS = st.builds("cluster-{}/scorer-{}".format, st.integers(0, 9999), st.integers(0, 99))
INTERVALS = st.one_of(st.integers(1, 120), st.sampled_from([300, 3600, 86400, 604800]))
TIMES = st.floats(1_000_000_000, 4_000_000_000)


@given(PAIRS, INTERVALS, TIMES)
def test_next_slot_is_at_most_one_interval_away(pair: str, interval: int, at: float) -> None:
    slot = compute_next_tick_time(pair, interval, at)
    assert at < slot <= at + interval + 2 * SLOT_TOLERANCE
    assert is_slot(pair, interval, slot)


@given(PAIRS, INTERVALS, TIMES)
def test_slots_follow_each_other_without_drift(pair: str, interval: int, at: float) -> None:
    first = compute_next_tick_time(pair, interval, at)
    slot = first
    for number in range(1, 50):
        slot = compute_next_tick_time(pair, interval, slot)
        assert abs(slot - (first + number * interval)) < 1e-5
    assert compute_current_tick_time(pair, interval, slot) == slot


@given(PAIRS, INTERVALS, TIMES, st.floats(0, 0.0009))
def test_due_time_moved_by_under_a_millisecond_keeps_its_slot(
    pair: str, interval: int, at: float, nudge: float
) -> None:
    slot = compute_next_tick_time(pair, interval, at)
    assert is_slot(pair, interval, slot - nudge)
    assert compute_next_due(pair, interval, slot - nudge, slot - nudge) == compute_next_tick_time(pair, interval, slot)
    assert compute_scheduled_time(pair, interval, slot - nudge, slot - nudge) == slot


@given(PAIRS, INTERVALS, TIMES, st.floats(0, 1_000_000))
def test_missed_slots_are_skipped(pair: str, interval: int, at: float, late: float) -> None:
    due = compute_next_tick_time(pair, interval, at)
    now = due + late
    next_time = compute_next_due(pair, interval, due, now)
    assert now < next_time <= now + interval + 2 * SLOT_TOLERANCE
    scheduled = compute_scheduled_time(pair, interval, due, now)
    assert now - interval - SLOT_TOLERANCE <= scheduled <= now + SLOT_TOLERANCE


@given(PAIRS, INTERVALS, TIMES, st.floats(0, 10))
def test_unscheduled_run_keeps_half_an_interval_to_the_next(pair: str, interval: int, due: float, late: float) -> None:
    now = due + late
    next_time = compute_next_due(pair, interval, due, now)
    assert is_slot(pair, interval, next_time)
    if not is_slot(pair, interval, due):
        assert now + interval / 2 - 2 * SLOT_TOLERANCE <= next_time <= now + 1.5 * interval + SLOT_TOLERANCE


def test_many_pairs_are_spread_evenly() -> None:
    tenths = [0] * 10
    for number in range(10_000):
        tenths[int(compute_next_tick_time(f"cluster-{number:05d}/sample-scorer", 30, 0.0) % 30 / 3)] += 1
    # Each bucket expects 1000; 150 is five standard deviations.
    assert all(850 < count < 1150 for count in tenths), tenths
