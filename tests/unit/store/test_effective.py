"""The effective values of an entry and its overrides."""

from __future__ import annotations

import pytest

from dsf.store.entries import EffectiveSchedule, Entry, ScheduleOverride, apply_overrides

NOW = 1_795_000_000.0
ENTRY = Entry(cluster="c1", scorer="s", score_name="x", interval=30)
SUSPENDED = ENTRY.model_copy(update={"suspended": True})


@pytest.mark.parametrize(
    ("entry", "overrides", "expected"),
    [
        (ENTRY, {}, EffectiveSchedule(30, "entry", False, None, "entry")),
        (SUSPENDED, {}, EffectiveSchedule(30, "entry", True, None, "entry")),
        (
            SUSPENDED.model_copy(update={"suspended_until": NOW + 1}),
            {},
            EffectiveSchedule(30, "entry", True, NOW + 1, "entry"),
        ),
        (
            SUSPENDED.model_copy(update={"suspended_until": NOW}),
            {},
            EffectiveSchedule(30, "entry", False, None, "entry"),
        ),
        (ENTRY, {"*/s": ScheduleOverride(interval=5)}, EffectiveSchedule(5, "*/s", False, None, "entry")),
        (
            ENTRY,
            {"*/s": ScheduleOverride(interval=5), "c1/s": ScheduleOverride(interval=7)},
            EffectiveSchedule(7, "c1/s", False, None, "entry"),
        ),
        # Fields are merged one by one: the pair's override has no interval.
        (
            ENTRY,
            {"*/s": ScheduleOverride(interval=5), "c1/s": ScheduleOverride(paused=True)},
            EffectiveSchedule(5, "*/s", True, None, "c1/s"),
        ),
        (
            ENTRY,
            {"*/s": ScheduleOverride(paused=True, paused_until=NOW + 60), "c1/s": ScheduleOverride(paused=False)},
            EffectiveSchedule(30, "entry", False, None, "c1/s"),
        ),
        (
            ENTRY,
            {"*/s": ScheduleOverride(paused=True, paused_until=NOW)},
            EffectiveSchedule(30, "entry", False, None, "entry"),
        ),
        # The pause of the pair has ended, that of the scorer has not.
        (
            ENTRY,
            {"*/s": ScheduleOverride(paused=True), "c1/s": ScheduleOverride(paused=True, paused_until=NOW - 1)},
            EffectiveSchedule(30, "entry", True, None, "*/s"),
        ),
        (SUSPENDED, {"*/s": ScheduleOverride(paused=False)}, EffectiveSchedule(30, "entry", False, None, "*/s")),
        (
            ENTRY,
            {"c2/s": ScheduleOverride(interval=5), "*/other": ScheduleOverride(paused=True)},
            apply_overrides(ENTRY, {}, NOW),
        ),
    ],
)
def test_effective(entry: Entry, overrides: dict[str, ScheduleOverride], expected: EffectiveSchedule) -> None:
    assert apply_overrides(entry, overrides, NOW) == expected
