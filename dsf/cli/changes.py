"""`dsf changes`: who did what and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.duration import past
from dsf.cli.output import Format, Output, clock, emit, table, table_limit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsf.fleet.changes import ChangeList


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
    output: Output = Format.TABLE,
) -> None:
    """Show who re-scored, paused, resumed, set intervals, reset, renewed credentials, applied plans.

    Newest first, the last 5000. Names marked `(claimed)` are unverified; the others were authenticated.

    Example: dsf changes sample-scorer --since 2h
    """
    from dsf.cli.session import looking

    start = None if since is None else past(since)
    with looking() as fleet:
        change_list = fleet.changes(scorer, cluster, since=start, limit=table_limit(limit, output))
        emit(change_list, output, lambda: _render(change_list))
        if output is Format.TABLE and change_list.continue_:
            typer.echo(
                f"dsf: the newest {len(change_list.changes)}; --limit 0 shows all, --since or a scorer's name filters",
                err=True,
            )


def _render(change_list: ChangeList) -> RenderableType:
    from rich.text import Text

    if not change_list.changes:
        return Text("There are no such changes.")
    rows: list[list[str | tuple[str, str]]] = [
        [
            clock(change.at),
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
    return table(("TIME", "WHO", "BY WAY OF", "DID", "TO", "CLUSTERS", "DETAIL", "NOTE"), rows)
