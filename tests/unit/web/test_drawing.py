"""Columns of the last cycles."""

from __future__ import annotations

from dsf.fleet.views import CycleView
from dsf.web.drawing import timeline


def _cycle(number: int) -> CycleView:
    return CycleView.model_construct(run_id=str(number), timings={"fetch": 1.0})


def test_few_cycles_stand_where_the_newest_is_expected() -> None:
    """At the right end, which is what a narrow screen shows."""
    few = timeline([_cycle(number) for number in range(3)], width=1000.0)
    assert [column.x for column in few.columns] == [850.0, 900.0, 950.0]
    many = timeline([_cycle(number) for number in range(40)], width=1000.0)
    assert (many.columns[0].x, many.columns[-1].x) == (0.0, 975.0)
