"""Stored runs are bounded, whatever was run."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from dsf.backtest.comparison import ComparisonView, ItemDifference, PlacementDifference, RankView, Span
from dsf.backtest.runstore import KeptRun, fitting, new_id
from dsf.backtest.summary import COLUMNS, BacktestView, FailureCount, ItemView

START = datetime(2026, 1, 1, tzinfo=UTC)


def backtest(cluster: str = "c1", items: int = 1, columns: int = 3, text: str = "no") -> BacktestView:
    """Return the view of a backtest with this many items."""
    return BacktestView(
        scorer="s",
        score_name="s",
        cluster=cluster,
        start=START,
        end=START,
        every=60,
        asked=columns,
        moments=columns,
        outcomes={"ok": columns},
        failures=[FailureCount(stage="fetch", reason="timeout", moments=1, message=text)] * 50,
        noise=0,
        items=[
            ItemView(
                name=f"i{number}", minimum=-1, median=0.5, maximum=1, changes=1, missing=0.0, line=[-100] * columns
            )
            for number in range(items)
        ],
        notes=[text] * 50,
    )


def comparison(at: float, *, clusters: int = 2, placements: int = 1, spans: int = 1, items: int = 1) -> KeptRun:
    """Return a run of the command line."""
    names = [f"c{number}" for number in range(clusters)]
    span = Span(start=START, seconds=60, a=names, b=names)
    placement_views = [
        PlacementDifference(
            namespace="apps", name="web", decisions=9, differ=3, flaps_a=1, flaps_b=2, spans=[span] * spans
        )
    ] * placements
    item = ItemDifference(
        cluster="c1", item="i", moments=1, mean_a=1, mean_b=2, mean_difference=1, largest_difference=1
    )
    view = ComparisonView(
        a="a",
        b="b",
        clusters=names,
        start=START,
        end=START,
        moments=9,
        every=60,
        items=[item] * items,
        ranks=[RankView(item="i", moments=1, mean=1, lowest=1)] * items,
        placements=placement_views,
        notes=[],
    )
    return KeptRun(id=new_id(at), at=at, by="ann", way="cli", clusters=names, comparison=view)


def with_backtests(run: KeptRun, views: list[BacktestView]) -> KeptRun:
    """Return the comparison with these backtests of both sides."""
    assert run.comparison is not None
    view = run.comparison.model_copy(update={"backtests_a": views, "backtests_b": views})
    return run.model_copy(update={"comparison": view})


def test_small_run_is_stored_unchanged() -> None:
    run = comparison(1e9)
    assert fitting(run) == run
    run = with_backtests(run, [backtest()])
    restored_run = KeptRun.model_validate_json(fitting(run).model_dump_json(by_alias=True, exclude_defaults=True))
    assert restored_run.comparison is not None
    assert [view.items for view in restored_run.comparison.backtests] == [backtest().items] * 2


def test_large_run_is_truncated_with_a_note() -> None:
    run = KeptRun(
        id="1",
        at=1e9,
        by="ann",
        way="page",
        clusters=[f"c{number}" for number in range(50)],
        backtests=[backtest(f"c{number}", items=500, columns=COLUMNS, text="x" * 5000) for number in range(50)],
    )
    cut = fitting(run)
    assert "50 clusters were tested; 10 are shown" in cut.problem
    assert len(cut.backtests[0].items) == 8
    assert cut.backtests[0].notes[0] == "and 492 items more, which changed less often"
    assert len(json.dumps(cut.model_dump(mode="json"))) < 256 * 1024
    both = comparison(1e9, clusters=500, placements=100, spans=1000, items=1000)
    assert len(fitting(with_backtests(both, run.backtests)).model_dump_json()) < 256 * 1024


def test_comparison_with_oversized_lines_is_stored_without_them() -> None:
    lines = [backtest(f"c{number}", items=8, columns=COLUMNS, text="x" * 9000) for number in range(10)]
    cut = fitting(with_backtests(comparison(1e9), lines))
    assert cut.comparison is not None
    assert cut.comparison.backtests == []
    assert "its lines are too large to be shown" in cut.problem


def test_ids_are_in_the_order_of_time() -> None:
    assert new_id(9.0) < new_id(10.0) < new_id(1e9) < new_id(4e9)
