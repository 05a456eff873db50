"""`dsf history`: the last cycles of one scorer on one cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.output import Format, Output, clock, emit, flat, number, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsf.fleet.views import CycleView, HistoryList

_STAGES = ("fetch", "score", "publish")
_STYLES = {"ok": "green", "empty": "green", "partial": "yellow", "skipped": "yellow", "error": "red", "lost": "red"}


def history(
    scorer: Annotated[str, typer.Argument(help="Name of the DynamicScorer.")],
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="Name of the managed cluster.")],
    output: Output = Format.TABLE,
) -> None:
    """Show the last cycles: time, duration of each stage, counts, bytes and outcome; and the counters.

    Example: dsf history sample-scorer --cluster worker01
    """
    from dsf.cli.session import looking

    with looking() as fleet:
        view = fleet.history(cluster, scorer)
        emit(view, output, lambda: _render(view))


def _render(view: HistoryList) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from dsf.store.history import COUNTS

    books = view.books
    skipped = ", ".join(f"{reason} {count}" for reason, count in sorted(books.skipped_by_reason.items()))
    summary = (
        f"scheduled {books.scheduled} = ok {books.ok} + empty {books.empty} + partial {books.partial} + "
        f"error {books.error} + skipped {books.skipped} + lost {books.lost} + open {books.open}"
        + (f" (skipped: {skipped})" if skipped else "")
    )
    if not view.cycles:
        return Group(Text("No cycle has ended yet."), Text(flat(summary)))
    # Always in one order, whatever a cycle counted first.
    given = dict.fromkeys(name for cycle in view.cycles for name in cycle.counts)
    names = [*(name for name in COUNTS if name in given), *sorted(given.keys() - set(COUNTS))]
    numbers = ("VALUE", *(stage.upper() for stage in _STAGES), *(name.upper() for name in names))
    headers = ("TIME", "RUN", "OUTCOME", *numbers, "REASON")
    rows = [_row(cycle, names) for cycle in view.cycles]
    return Group(table(headers, rows, right=numbers), Text(""), Text(flat(summary)))


def _row(cycle: CycleView, names: list[str]) -> list[str | tuple[str, str]]:
    stage = f"{cycle.stage}: " if cycle.stage else ""
    why = f"{stage}{cycle.reason}" + (f": {cycle.message}" if cycle.message else "")
    return [
        clock(cycle.at),
        cycle.run_id,
        (cycle.outcome, _STYLES.get(cycle.outcome, "")),
        "-" if cycle.value is None else number(cycle.value),
        *(_milliseconds(cycle.timings.get(stage)) for stage in _STAGES),
        *(str(cycle.counts[name]) if name in cycle.counts else "-" for name in names),
        why if cycle.reason else "",
    ]


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f}ms"
