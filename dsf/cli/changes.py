"""`dsf changes`: who did what and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.duration import past
from dsf.cli.output import Format, Output, clock, emit, table, table_limit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsf.fleet.changes import ChangeList

#: Lines of the table unless told otherwise.
_LINES = 50


def changes(
    scorer: Annotated[str | None, typer.Argument(help="Only of this DynamicScorer.")] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", help="Only what may concern this managed cluster.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="ISO 8601 (local time unless it has a zone), or how long ago such as 2h."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Changes in the table, 0 for all; json and yaml always have all.")
    ] = _LINES,
    output: Output = Format.TABLE,
) -> None:
    """What people did: re-scored, paused, resumed, set intervals, reset, renewed credentials, applied plans.

    Newest first, the last 5000. A name without `(claimed)` was authenticated; the others are what their bearers say.

    Example: dsf changes sample-scorer --since 2h
    """
    from dsf.cli.session import looking

    start = None if since is None else past(since)
    with looking() as fleet:
        found = fleet.changes(scorer, cluster, since=start, limit=table_limit(limit, output))
        emit(found, output, lambda: _render(found))
        if output is Format.TABLE and found.continue_:
            typer.echo(
                f"dsf: the newest {len(found.changes)}; --limit 0 shows all, --since or a scorer's name fewer", err=True
            )


def _render(found: ChangeList) -> RenderableType:
    from rich.text import Text

    if not found.changes:
        return Text("Nobody has changed anything of this kind.")
    rows: list[list[str | tuple[str, str]]] = [
        [
            clock(one.at),
            (one.who, "yellow" if one.claimed else ""),
            one.way,
            one.action.value,
            one.scorer or one.namespace or "-",
            one.where or "-",
            one.detail or one.reference,
            one.note,
        ]
        for one in found.changes
    ]
    return table(("TIME", "WHO", "BY WAY OF", "DID", "TO", "CLUSTERS", "DETAIL", "NOTE"), rows)
