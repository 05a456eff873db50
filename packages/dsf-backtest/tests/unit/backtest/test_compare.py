"""The output of `dsf compare` for a Placement."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dsf.backtest.commands import compare
from dsf.backtest.comparison import ComparisonView, PlacementDifference

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moments", "flaps"),
    [
        (289, "flaps 8 -> 86 a day"),
        # Two one-day recordings that were made minutes apart overlap less.
        (288, "flaps 8.03 -> 86.3 a day"),
        (145, "flaps 8 -> 86"),
        (577, "flaps 4 -> 43 a day"),
    ],
)
def test_flaps_are_for_a_day_if_it_was_one(moments: int, flaps: str) -> None:
    web = PlacementDifference(
        namespace="apps", name="web", decisions=moments, differ=55, flaps_a=8, flaps_b=86, spans=[]
    )
    end = START + timedelta(minutes=5 * (moments - 1))
    view = ComparisonView(
        a="a", b="b", clusters=["c1"], start=START, end=end, moments=moments, every=300,
        items=[], ranks=[], placements=[web], notes=[],
    )  # fmt: skip
    assert compare._format_placement(web, view) == [
        (f"Placement apps/web: 55 of {moments} decisions differ; {flaps}", "bold"),
    ]
