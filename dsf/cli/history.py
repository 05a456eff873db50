"""`dsf history`: the last cycles of one scorer on one cluster; `dsf changes`: who did what and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.duration import parse_start_time
from dsf.cli.output import (
    Cell,
    Format,
    OutputOption,
    Renderable,
    emit,
    flatten,
    format_clock,
    format_number,
    get_table_limit,
    make_table,
    stack_parts,
)

if TYPE_CHECKING:
    from dsf.fleet.changes import ChangeList
    from dsf.fleet.views import CycleView, HistoryList

_STAGES = ("fetch", "score", "publish")
_STYLES = {"ok": "green", "empty": "green", "partial": "yellow", "skipped": "yellow", "error": "red", "lost": "red"}


def history(
    scorer: Annotated[str, typer.Argument(help="Name of the DynamicScorer.")],
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="Name of the managed cluster.")],
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the last cycles: time, duration of each stage, counts, bytes and outcome; and the counters.

    Example: dsf history sample-scorer --cluster worker01
    """
    from dsf.cli.session import open_data_source

    with open_data_source() as fleet:
        view = fleet.history(cluster, scorer)
        emit(view, output, lambda: _render_cycles(view))


def _render_cycles(view: HistoryList) -> Renderable:
    from dsf.process import tracing
    from dsf.store.history import COUNTS

    books = view.books
    skip_counts_text = ", ".join(f"{reason} {count}" for reason, count in sorted(books.skipped_by_reason.items()))
    summary = (
        f"scheduled {books.scheduled} = ok {books.ok} + empty {books.empty} + partial {books.partial} + "
        f"error {books.error} + skipped {books.skipped} + lost {books.lost} + open {books.open}"
        + (f" (skipped: {skip_counts_text})" if skip_counts_text else "")
    )
    if not view.cycles:
        return stack_parts("No cycle has ended yet.", flatten(summary))
    # Sort the counts, so that their order does not depend on the first cycle.
    counted_names = dict.fromkeys(name for cycle in view.cycles for name in cycle.counts)
    names = [*(name for name in COUNTS if name in counted_names), *sorted(counted_names.keys() - set(COUNTS))]
    numbers = ("VALUE", *(stage.upper() for stage in _STAGES), *(name.upper() for name in names))
    has_traces = tracing.is_enabled()
    headers = ("TIME", "RUN", "OUTCOME", *numbers, "REASON", *(("TRACE",) if has_traces else ()))
    rows = [[*_make_row(cycle, names), *((cycle.trace,) if has_traces else ())] for cycle in view.cycles]
    return stack_parts(make_table(headers, rows, right_aligned_headers=numbers), "", flatten(summary))


def _make_row(cycle: CycleView, names: list[str]) -> list[Cell]:
    stage = f"{cycle.stage}: " if cycle.stage else ""
    cause = f"{stage}{cycle.reason}" + (f": {cycle.message}" if cycle.message else "")
    return [
        format_clock(cycle.at),
        cycle.run_id,
        (cycle.outcome, _STYLES.get(cycle.outcome, "")),
        "-" if cycle.value is None else format_number(cycle.value),
        *(_format_milliseconds(cycle.timings.get(stage)) for stage in _STAGES),
        *(str(cycle.counts[name]) if name in cycle.counts else "-" for name in names),
        cause if cycle.reason else "",
    ]


def _format_milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f}ms"


def changes(
    scorer: Annotated[str | None, typer.Argument(help="Only of this DynamicScorer.")] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", help="Only changes that may affect this managed cluster.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="ISO 8601 (local time unless it has a zone), or how long ago such as 2h."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Changes in the table, 0 for all; json and yaml always have all.")
    ] = 50,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show who re-scored, paused, resumed, set intervals, reset, renewed credentials, applied plans.

    Newest first, the last 5000. Names marked `(claimed)` are unverified; the others were authenticated.

    Example: dsf changes sample-scorer --since 2h
    """
    from dsf.cli.session import open_data_source

    if since is not None:
        # Check the syntax before connecting to the hub.
        parse_start_time(since)
    with open_data_source(needs_time=since is not None) as fleet:
        start = None if since is None else parse_start_time(since)
        change_list = fleet.changes(scorer, cluster, since=start, limit=get_table_limit(limit, output))
        emit(change_list, output, lambda: _render_changes(change_list, is_filtered=bool(scorer or cluster or since)))
        if output is Format.TABLE and change_list.continue_:
            typer.echo(
                f"dsf: the newest {len(change_list.changes)}; --limit 0 shows all, --since or a scorer's name filters",
                err=True,
            )


def _render_changes(change_list: ChangeList, *, is_filtered: bool) -> Renderable:
    if not change_list.changes:
        return "There are no such changes." if is_filtered else "No changes yet."
    rows: list[list[Cell]] = [
        [
            format_clock(change.at),
            (change.who, "yellow" if change.claimed else ""),
            change.way,
            change.action.value,
            change.scorer or change.namespace or "-",
            change.where or "-",
            change.detail or change.reference,
            change.note,
        ]
        for change in change_list.changes
    ]
    return make_table(("TIME", "WHO", "BY WAY OF", "DID", "TO", "CLUSTERS", "DETAIL", "NOTE"), rows)
