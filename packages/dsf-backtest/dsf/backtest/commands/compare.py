"""`dsf compare`: two scorers side by side, and the clusters that Placements would have chosen."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from dsf.backtest.commands.backtest import Every, Keep, Rate, format_moment
from dsf.cli.duration import parse_seconds
from dsf.cli.group import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, fail
from dsf.cli.output import Cell, Format, OutputOption, Renderable, emit, flatten, make_table, stack_parts
from dsf.text import list_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsf.backtest.comparison import ComparisonView, PlacementDifference

#: Maximum lines of one Placement in the table.
_MAX_SPANS = 5


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A scorer's name, its manifest, or a file of `dsf backtest`.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one, likewise.")],
    since: Annotated[
        int,
        typer.Option(
            "--since", parser=parse_seconds, metavar="TIME", help="Test both that far back; without it, as now."
        ),
    ] = 0,
    every: Every = 300,
    clusters: Annotated[
        list[str] | None,
        typer.Option("--cluster", "-c", help="Only this cluster; may be repeated. Default: all that have both."),
    ] = None,
    placements: Annotated[
        list[str] | None,
        typer.Option(
            "--placement",
            metavar="FILE|[NAMESPACE/]NAME",
            help="Placements in a file, or one of the hub; may be repeated. Default: the hub's that prefer A or B.",
        ),
    ] = None,
    rate: Rate = 10.0,
    keep: Keep = False,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Items in the table, 0 for all.")] = 10,
    output: OutputOption = Format.TABLE,
) -> None:
    """Compare two scorers: items, the order of clusters, and which Placements would have chosen otherwise, and when.

    Two files of `dsf backtest --out`; or two scorers, tested now with --since; or as their scores are in the hub.
    Placements are evaluated by the rules of OCM's scheduler, as by `dsf placement`. Exit code 1 if one cannot be, or if
    A and B have no item in common.
    Ctrl-C ends the tests, and compares what was computed.

    Example: dsf compare before.jsonl after.jsonl --placement placement.yaml
    """
    from dsf.backtest.commands import replay
    from dsf.backtest.comparison import compare_recordings, find_common
    from dsf.backtest.errors import BacktestError
    from dsf.process import hubclock

    is_interrupted = False
    try:
        with ExitStack() as stack:
            # Read the clock once, because both current scores must belong to one moment.
            now = int(hubclock.now())
            sides = [replay.read_side(stack, name, since, clusters or [], now) for name in (a, b)]
            named_sides = zip((a, b), sides, strict=True)
            is_interrupted = replay.test_sides(stack, named_sides, since, every, clusters or [], rate)
            common = find_common(sides[0], sides[1])
            differences, notes, problems = replay.replay_placements(placements or [], sides[0], sides[1], common)
            view = compare_recordings(sides[0], sides[1], common)
    except BacktestError as error:
        fail(str(error), EXIT_INTERRUPTED if is_interrupted else EXIT_USAGE)
    view = view.model_copy(update={"placements": differences, "notes": [*view.notes, *notes, *problems]})
    emit(view, output, lambda: _render(view, limit or None))
    if keep:
        replay.store_run_for_page(
            [question.scorer for side in sides for question in side.questions.values()],
            clusters=view.clusters,
            comparison=replay.drop_folders(view, sides),
        )
    if is_interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not view.items or problems or any(placement.problem for placement in view.placements):
        raise typer.Exit(EXIT_FAILURE)


def _render(view: ComparisonView, limit: int | None) -> Renderable:
    time_text = (
        f"{view.moments} moments from {format_moment(view.start)} to {format_moment(view.end)}" if view.every else "now"
    )
    parts: list[Cell | Renderable] = [
        (flatten(f"A {view.a}, B {view.b} on {', '.join(view.clusters)}: {time_text}"), "bold")
    ]
    rows = [
        [
            item.cluster,
            item.item,
            f"{item.mean_a:g}",
            f"{item.mean_b:g}",
            f"{item.mean_difference:+g}",
            f"{item.largest_difference:+d}",
        ]
        for item in view.items[:limit]
    ]
    headers = ("CLUSTER", "ITEM", "A", "B", "B - A", "LARGEST")
    if rows:
        parts.append(make_table(headers, rows, right_aligned_headers=headers[2:]))
    if limit is not None and len(view.items) > limit:
        parts.append(f"and {len(view.items) - limit} items more, which differ less; --limit 0 shows all")
    parts += [
        flatten(f"order of clusters by {rank.item}: rank correlation {rank.mean:g}, lowest {rank.lowest:g}")
        for rank in view.ranks[:limit]
    ]
    for placement in view.placements:
        parts += _format_placement(placement, view)
    parts += [(flatten(f"note: {note}"), "yellow") for note in view.notes]
    return stack_parts(*parts)


def _format_placement(difference: PlacementDifference, view: ComparisonView) -> list[tuple[str, str]]:
    """Return the lines of a Placement, each with a style."""
    name = flatten(f"Placement {difference.namespace}/{difference.name}".replace(" /", " "))
    if difference.problem:
        return [(f"{name}: no decision is possible: {flatten(difference.problem)}", "red")]
    if not view.every:
        span = difference.spans[0] if difference.spans else None
        moved = f"{_format_names(span.b)} instead of {_format_names(span.a)}" if span else "the same clusters"
        return [(f"{name}: with B {moved}", "bold")]
    days = (view.end - view.start).total_seconds() / 86_400
    # Show flaps per day only for at least a day, because the number would be a guess for a shorter time. The common
    # part of two recordings of a day counts as a day.
    covers_a_day = days > 0.95
    flaps = [f"{flaps / days if covers_a_day else flaps:.3g}" for flaps in (difference.flaps_a, difference.flaps_b)]
    unit = " a day" if covers_a_day else ""
    first_span = (
        f"{name}: {difference.differ} of {difference.decisions} decisions differ; flaps {flaps[0]} -> {flaps[1]}{unit}"
    )
    spans = [
        (
            (
                f"   {format_moment(span.start)} for {_format_duration(span.seconds)}: "
                f"{_format_names(span.a)}, with B {_format_names(span.b)}"
            ),
            "",
        )
        for span in difference.spans[:_MAX_SPANS]
    ]
    omitted_count = len(difference.spans) - _MAX_SPANS
    return [
        (first_span, "bold"),
        *spans,
        *([(f"   and {omitted_count} times more; -o json has all", "")] if omitted_count > 0 else []),
    ]


def _format_names(clusters: Sequence[str]) -> str:
    return flatten(list_names(clusters, 3)) or "none"


def _format_duration(length: int) -> str:
    """Return a duration such as `40s`, `25m` and `3h10m`."""
    if length < 60:
        return f"{length}s"
    hours, minutes = divmod(length // 60, 60)
    return f"{hours}h{minutes}m" if hours and minutes else f"{hours}h" if hours else f"{minutes}m"
