"""The tab of a scorer with its backtests and comparisons, and the actions that start them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dsf.backtest import runstore
from dsf.backtest.actions import ACTS, BacktestActions
from dsf.backtest.drawing import SeriesLine, draw_lines
from dsf.backtest.runner import MAX_RUN_SECONDS
from dsf.backtest.runstore import KeptRun
from dsf.backtest.summary import BacktestView, ItemView
from dsf.kube.resources import PLACEMENTS
from dsf.process import hubclock
from dsf.web.access import Right
from dsf.web.charts import Chart
from dsf.web.pages import OPTIONAL_RIGHT_PARAMETER, PagePlugin, PageView, Query, Sources

#: Maximum time spans of a Placement's table.
_MAX_SPANS: Final = 10
#: Glyph and class of each state of a run.
_STATES: Final = {
    "running": ("…", "s-paused"),
    "stopped": ("?", "o-lost"),
    "failed": ("✕", "o-error"),
    "in part": ("◐", "o-partial"),
    "ok": ("✓", "o-ok"),
}


@dataclass(frozen=True)
class RunRow:
    """A row of the list of runs."""

    run: KeptRun
    title: str
    state: str


def list_backtests(sources: Sources, names: Mapping[str, str], query: Query) -> dict[str, Any]:
    """Return the data of the template: the list, and the run in the query, by default the newest.

    Raises UnknownScorerError.
    """
    scorer = names["scorer"]
    record = sources.reading.registry.read_scorer(scorer)
    rows = [_make_row(run) for run in runstore.read_runs(sources.reading.redis, scorer)]
    selected_row = next((row for row in rows if row.run.id == query.get("run")), rows[0] if rows else None)
    comparison = selected_row.run.comparison if selected_row else None
    # A viewer without the right to list Placements must not see decisions of Placements.
    may_see_placements = OPTIONAL_RIGHT_PARAMETER in query
    return {
        "title": f"Backtests of {scorer}",
        "record": record,
        "rows": rows,
        "run_states": _STATES,
        "chosen": selected_row,
        "plots": _draw_plots(selected_row.run) if selected_row else [],
        "placements": comparison.placements if comparison and may_see_placements else [],
        "notes": comparison.notes if comparison and may_see_placements else [],
        "withheld": comparison is not None and not may_see_placements,
        "max_spans": _MAX_SPANS,
        "unreached": _find_unreached_servers(selected_row.run)
        if selected_row and selected_row.state == "failed"
        else "",
        "command": f"dsf backtest {shlex.quote(scorer)}",
    }


def _make_row(run: KeptRun) -> RunRow:
    sides = [run.comparison.a, run.comparison.b] if run.comparison else run.scorers
    return RunRow(run, f"{sides[0]} (A) and {sides[1]} (B)" if sides else "backtest", _describe_state(run))


def _describe_state(run: KeptRun) -> str:
    if run.is_running:
        # A run that is too old was left over by a web service that has ended.
        return "running" if run.at.timestamp() > hubclock.now() - MAX_RUN_SECONDS - 60 else "stopped"
    comparison = run.comparison
    sides = (
        [run.backtests]
        if comparison is None
        else [side for side in (comparison.backtests_a, comparison.backtests_b) if side]
    )
    if any(not any(view.items for view in side) for side in sides):
        return "failed"
    is_whole = all(view.moments == view.asked and not view.outcomes.get("error") for side in sides for view in side)
    is_undecided = comparison is not None and any(placement.problem for placement in comparison.placements)
    return "ok" if is_whole and not run.problem and not is_undecided else "in part"


def _find_unreached_servers(run: KeptRun) -> str:
    """Return which source has failed, for a run without items; an empty string if another stage has failed."""
    views = run.comparison.backtests if run.comparison else run.backtests
    empty_views = [view for view in views if not view.items]
    failed_views = [view for view in empty_views if view.failures and view.failures[0].stage == "fetch"]
    if not failed_views:
        return "" if views else "what it needs"
    return f"the source of {failed_views[0].scorer} on {failed_views[0].cluster} ({failed_views[0].failures[0].reason})"


def _draw_plots(run: KeptRun) -> list[tuple[str, Chart]]:
    """Return (cluster, chart with the lines of its items) for each cluster with a value."""
    lines_by_cluster: dict[str, list[SeriesLine]] = {}
    comparison = run.comparison
    sides = {"A: ": comparison.backtests_a, "B: ": comparison.backtests_b} if comparison else {"": run.backtests}
    for prefix, views in sides.items():
        for view in views:
            lines_by_cluster.setdefault(view.cluster, []).extend(_make_lines(view, prefix))
    plots = ((cluster, draw_lines(lines)) for cluster, lines in lines_by_cluster.items())
    return [(cluster, plot) for cluster, plot in plots if plot is not None]


def _make_lines(view: BacktestView, prefix: str) -> list[SeriesLine]:
    # Limit the items of each side of a comparison, because both sides share the colours.
    items: Sequence[ItemView] = view.items[:4] if prefix else view.items
    start, end = view.start.timestamp(), view.end.timestamp()
    return [SeriesLine(prefix + item.name, start, end, item.line) for item in items]


PAGES: Final = PagePlugin(
    "Backtests",
    "/backtests",
    "dsf.backtest",
    (
        PageView(
            "/scorers/{scorer}/backtests",
            "backtests/backtests.html",
            list_backtests,
            optional_right=Right("list", PLACEMENTS),
            has_actions=True,
            query_parameters=("run",),
        ),
    ),
    is_tab=True,
    acts=ACTS,
    make_actions=BacktestActions,
)
