"""Backtests and comparisons as the hub stores them."""

from __future__ import annotations

from datetime import UTC, datetime

from dsf.backtest.comparison import ComparisonView, ItemDifference, PlacementDifference, RankView, Span
from dsf.backtest.runstore import KeptRun, make_run_id
from dsf.backtest.summary import BacktestView, FailureCount, ItemView

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
    """Return a stored comparison of the command line."""
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
    return KeptRun(id=make_run_id(at), at=at, by="ann", way="cli", clusters=names, comparison=view)


def with_backtests(run: KeptRun, views: list[BacktestView]) -> KeptRun:
    """Return the comparison with these backtests of both sides."""
    assert run.comparison is not None
    view = run.comparison.model_copy(update={"backtests_a": views, "backtests_b": views})
    return run.model_copy(update={"comparison": view})
