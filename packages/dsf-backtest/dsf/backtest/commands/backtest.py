"""`dsf backtest`: the scores that a scorer would have given in the past."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.duration import parse_hold, parse_seconds
from dsf.cli.group import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, fail
from dsf.cli.output import Cell, Format, Renderable, emit, flatten, make_table, stack_parts

if TYPE_CHECKING:
    from dsf.backtest.summary import BacktestView


class BacktestFormat(StrEnum):
    """Output format."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


Since = Annotated[
    int, typer.Option("--since", parser=parse_seconds, metavar="TIME", help="How far back: 24h, 90m, 7d.")
]
Every = Annotated[
    int, typer.Option("--every", parser=parse_seconds, metavar="TIME", help="Time between two moments: 5m, 30s.")
]
Rate = Annotated[
    float, typer.Option("--rate", min=0.01, help="Most requests per second to a source, and to the scoring API.")
]
Keep = Annotated[bool, typer.Option("--keep", help="Show it on the hub's page, too; needs the hub's Redis.")]


def backtest(
    scorer: Annotated[
        str | None,
        typer.Argument(help="Name of the DynamicScorer; not needed if -f has a single one, or one and its inputs."),
    ] = None,
    clusters: Annotated[
        list[str] | None,
        typer.Option("--cluster", "-c", envvar="DSF_CLUSTER", help="Name of a managed cluster; may be repeated."),
    ] = None,
    since: Since = 86400,
    every: Every = 300,
    manifest: Annotated[
        Path | None,
        typer.Option("--file", "-f", exists=True, help="Test the DynamicScorer in this file, registered or not."),
    ] = None,
    scorer_url: Annotated[
        str,
        typer.Option(
            "--scorer-url", metavar="URL", help="The scoring API's address from here, also of a composite's inputs."
        ),
    ] = "",
    source_url: Annotated[
        str, typer.Option("--source-url", metavar="URL", help="The Prometheus's address from here: a port-forward.")
    ] = "",
    noise: Annotated[int, typer.Option("--noise", min=0, help="A change by at most this does not count.")] = 0,
    hold_text: Annotated[
        str | None,
        typer.Option("--hold", metavar="POINTS:TIME", help="Also count the changes that spec.replay.hold leaves."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", dir_okay=False, help="Append each moment to this file; a second run continues it."),
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Also draw the values to a .svg or .png file.")] = None,
    rate: Rate = 10.0,
    keep: Keep = False,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Items in the table, 0 for all.")] = 20,
    output: Annotated[
        BacktestFormat,
        typer.Option("--output", "-o", help="A table for users, json for programs, jsonl: the lines of --out."),
    ] = BacktestFormat.TABLE,
) -> None:
    """Ask a scorer what it would have said at each moment of the past. Nothing is published.

    Runs the agent's own stages: the range query ends at each moment, and the scoring API gets the same request as then.
    Ctrl-C keeps what was computed, and prints it. Exit code 1 if no moment has a value.

    Example: dsf backtest sample-scorer --cluster worker01 --since 24h --every 5m
    """
    from dsf import pictures
    from dsf.backtest import charts
    from dsf.backtest.commands import replay
    from dsf.backtest.errors import BacktestError
    from dsf.backtest.recording import Recording
    from dsf.backtest.run import list_moments
    from dsf.backtest.summary import BacktestList
    from dsf.process import hubclock

    if scorer is None and manifest is None:
        raise typer.BadParameter("is needed, or a manifest with -f", param_hint="SCORER")
    if not clusters:
        raise typer.BadParameter("is needed; with -f it may be any name", param_hint="--cluster")
    if plot is not None:
        pictures.check(plot)
    rule = parse_hold(hold_text) if hold_text is not None else None
    try:
        times = list_moments(since, every, hubclock.now())
        with ExitStack() as stack:
            subjects = [
                replay.read_subject(stack, scorer, name, manifest, scorer_url, source_url)
                for name in dict.fromkeys(clusters)
            ]
            recording = stack.enter_context(Recording(out, writing=out is not None))
            on_line = replay.print_line if output is BacktestFormat.JSONL else None
            is_interrupted = replay.run_all(((subject, recording) for subject in subjects), times, every, rate, on_line)
            views = replay.make_views(recording, subjects, times, noise, rule)
    except BacktestError as error:
        fail(str(error), EXIT_USAGE)
    if output is BacktestFormat.JSONL:
        typer.echo("\n".join(line for view in views for line in _list_remarks(view)), err=True)
    else:
        shape = Format.JSON if output is BacktestFormat.JSON else Format.TABLE
        emit(BacktestList(backtests=views), shape, lambda: _render(views, limit or None))
    if plot is not None and views:
        charts.draw(views, plot)
    if keep and views:
        replay.store_run_for_page(
            [view.scorer for view in views], clusters=[view.cluster for view in views], backtests=views
        )
    if is_interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not any(view.items for view in views):
        raise typer.Exit(EXIT_FAILURE)


def format_moment(moment: datetime) -> str:
    """Return a moment in local time, always with its date, and with seconds unless it is a full minute."""
    local = moment.astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S}" if local.second else f"{local:%Y-%m-%d %H:%M}"


def _list_remarks(view: BacktestView) -> list[str]:
    """Return the title of a view, and the lines with its failures and notes."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(view.outcomes.items())) or "none"
    title = (
        f"{view.scorer} on {view.cluster}: {view.moments} of {view.asked} moments from {format_moment(view.start)} to "
        f"{format_moment(view.end)}, every {view.every} s: {outcomes}"
    )
    failures = [f"{failure.moments} x {failure.stage} {failure.reason}: {failure.message}" for failure in view.failures]
    return [flatten(line) for line in (title, *failures, *(f"note: {note}" for note in view.notes))]


def _render(views: list[BacktestView], limit: int | None) -> Renderable:
    from dsf.backtest.charts import draw_blocks

    parts: list[Cell | Renderable] = []
    for view in views:
        title, *remarks = _list_remarks(view)
        rows = [
            [
                item.name,
                str(item.minimum),
                f"{item.median:g}",
                str(item.maximum),
                str(item.changes) + ("" if item.held_changes is None else f" ({item.held_changes} held)"),
                f"{item.missing:.1%}",
                draw_blocks(item.line),
            ]
            for item in view.items[:limit]
        ]
        headers = ("ITEM", "MIN", "MEDIAN", "MAX", "CHANGES", "MISSING", "OVER TIME")
        parts += [(title, "bold"), make_table(headers, rows, right_aligned_headers=headers[1:6])]
        if limit is not None and len(view.items) > limit:
            parts.append(f"and {len(view.items) - limit} items more, which changed less often; --limit 0 shows all")
        parts += [(remark, "yellow") for remark in remarks]
    return stack_parts(*parts)
