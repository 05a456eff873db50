"""`dsf sync`: read a scoring API's /config now."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from dsf.cli.duration import seconds
from dsf.cli.group import BAD
from dsf.cli.output import Format, Output, emit, flat
from dsf.cli.person import AsOption, actor


def sync(
    scorer: Annotated[str, typer.Argument(help="Name of the DynamicScorer.")],
    timeout: Annotated[
        int,
        typer.Option(
            "--timeout",
            parser=seconds,
            metavar="TIME",
            help="Seconds to wait for the hub controller, or for example 1m.",
        ),
        # Longer than the hub waits for a scoring API.
    ] = 15,
    note: Annotated[str, typer.Option("--note", help="Reason, shown in `dsf changes`.")] = "",
    name: AsOption = None,
    output: Output = Format.TABLE,
) -> None:
    """Have the hub controller read /config now, which it otherwise does every 30 seconds, and wait for it.

    Exit code 1 if there was no valid answer, or none in time.

    Example: dsf sync sample-scorer
    """
    from dsf.cli.session import session
    from dsf.fleet.actions import Actions
    from dsf.fleet.changes import moment
    from dsf.fleet.views import SyncReport
    from dsf.store.notices import Notices

    with session() as opened:
        request = Actions(opened.redis, opened.settings, actor(name)).sync(scorer, note=note)
        notices, until = Notices(opened.redis), time.monotonic() + timeout
        while (read := notices.read(scorer)) is None or moment(read.request or "0") < moment(request):
            if time.monotonic() >= until:
                typer.echo(
                    f"dsf: /config was not read within {timeout} s; check that the hub controller runs", err=True
                )
                raise typer.Exit(BAD)
            time.sleep(0.1)
    report = SyncReport(scorer=scorer, config_read=read.at or None, problem=read.problem)
    emit(report, output, lambda: flat(f"{scorer}: {report.problem or '/config was read'}"))
    if report.problem:
        raise typer.Exit(BAD)
