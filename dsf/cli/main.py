"""`dsf`: all commands."""

from __future__ import annotations

from importlib.metadata import entry_points

import typer

from dsf.cli import (
    changes,
    credentials,
    explain,
    history,
    info,
    placement,
    processes,
    rescore,
    schedule,
    scores,
    status,
    sync,
    up,
)
from dsf.cli.group import CommandGroup, FleetCommand

app = typer.Typer(
    name="dsf",
    cls=CommandGroup,
    help="Dynamic scoring of clusters. Commands use a running `dsf demo` or the Redis of DSF_REDIS_URL; of "
    "several demos, --context NAME after the command selects one.",
    no_args_is_help=True,
    add_completion=True,
    # Tracebacks go into bug reports; local variables may contain passwords.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_LOOK = "Look"
_CHANGE = "Change"
_RUN = "Run a process"

app.command(cls=FleetCommand, rich_help_panel=_LOOK)(status.status)
app.command(cls=FleetCommand, rich_help_panel=_LOOK)(scores.scores)
app.command(cls=FleetCommand, rich_help_panel=_LOOK)(history.history)
app.command(cls=FleetCommand, rich_help_panel=_LOOK)(changes.changes)
app.command(cls=FleetCommand, rich_help_panel=_LOOK)(explain.explain)
app.command(rich_help_panel=_LOOK)(placement.placement)
app.command(cls=FleetCommand, rich_help_panel=_CHANGE)(rescore.rescore)
app.command(cls=FleetCommand, rich_help_panel=_CHANGE)(sync.sync)
app.add_typer(schedule.app, name="schedule", rich_help_panel=_CHANGE)
app.add_typer(credentials.app, name="credentials", rich_help_panel=_CHANGE)
app.command(rich_help_panel=_RUN)(up.up)
app.command(rich_help_panel=_RUN)(processes.hub)
app.command(rich_help_panel=_RUN)(processes.agent)
app.command(rich_help_panel=_RUN)(processes.exporter)
app.command(rich_help_panel=_RUN)(processes.web)
app.command(rich_help_panel=_RUN)(processes.results)
app.command(rich_help_panel=_RUN)(processes.beat)
app.command(rich_help_panel=_RUN)(processes.flower)
app.command(rich_help_panel=_LOOK)(info.crds)
app.command(rich_help_panel=_LOOK)(info.version)

# Commands of distributions of their own.
for entry in sorted(entry_points(group="dsf.commands"), key=lambda entry: entry.name):
    entry.load()(app)


def run() -> None:
    """Run the command line."""
    app(prog_name="dsf")
