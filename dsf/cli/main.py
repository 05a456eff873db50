"""Assembles the command line `dsf`, and defines `dsf version` and `dsf crds`."""

from __future__ import annotations

import copy
import json
import os
import sys
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Annotated

import typer

from dsf import foreignvariables
from dsf.cli import (
    credentials,
    explain,
    history,
    migrate,
    processes,
    rescore,
    schedule,
    scores,
    status,
    streams,
)
from dsf.cli.group import CommandGroup, FleetCommand
from dsf.cli.output import Format, OutputOption, emit, flatten
from dsf.errors import OutputError

app = typer.Typer(
    name="dsf",
    cls=CommandGroup,
    help="Dynamic scoring of clusters. Commands use the Redis of DSF_REDIS_URL, else a `dsf demo` that runs on this "
    "machine, else the hub of kubectl's context. After the command, --context NAME selects a hub, --demo NAME a demo.",
    no_args_is_help=True,
    add_completion=True,
    # Print plain tracebacks: those for bug reports must not contain local variables, which may be passwords.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_LOOK_PANEL = "Look"
_CHANGE_PANEL = "Change"
_RUN_PANEL = "Run a process"


class ManifestFormat(StrEnum):
    """Output format of Kubernetes objects."""

    YAML = "yaml"
    JSON = "json"


def version(output: OutputOption = Format.TABLE) -> None:
    """Print the version, and those of Python and Celery.

    Example: dsf version -o json
    """
    import platform
    from importlib import metadata

    from pydantic import BaseModel, Field

    class Versions(BaseModel):
        dsf: str = Field(default_factory=lambda: metadata.version("dynamic-scoring-framework"))
        python: str = Field(default_factory=platform.python_version)
        celery: str = Field(default_factory=lambda: metadata.version("celery"))

    versions = Versions()
    emit(versions, output, lambda: f"dsf {versions.dsf} (Python {versions.python}, Celery {versions.celery})")


def _print_version(is_set: bool) -> None:
    if is_set:
        from importlib import metadata

        typer.echo(f"dsf {metadata.version('dynamic-scoring-framework')}")
        raise typer.Exit


def crds(
    output: Annotated[
        ManifestFormat, typer.Option("--output", "-o", help="yaml or json; kubectl accepts both.")
    ] = ManifestFormat.YAML,
) -> None:
    """Print the CustomResourceDefinitions, generated from the models.

    Example: dsf crds | kubectl apply -f -
    """
    from dsf.api import crd

    if output is ManifestFormat.JSON:
        document = {"apiVersion": "v1", "kind": "List", "items": crd.make_crds()}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        typer.echo(crd.dump_crds(), nl=False)


@app.callback()
def _options(
    _show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Declare the options of `dsf` itself."""


app.command("status", cls=FleetCommand, rich_help_panel=_LOOK_PANEL)(status.status)
app.command("scores", cls=FleetCommand, rich_help_panel=_LOOK_PANEL)(scores.scores)
app.command("history", cls=FleetCommand, rich_help_panel=_LOOK_PANEL)(history.history)
app.command("changes", cls=FleetCommand, rich_help_panel=_LOOK_PANEL)(history.changes)
app.command("explain", cls=FleetCommand, rich_help_panel=_LOOK_PANEL)(explain.explain)
app.command("rescore", cls=FleetCommand, rich_help_panel=_CHANGE_PANEL)(rescore.rescore)
app.command("sync", cls=FleetCommand, rich_help_panel=_CHANGE_PANEL)(rescore.sync)
app.add_typer(schedule.app, name="schedule", rich_help_panel=_CHANGE_PANEL)
app.add_typer(credentials.app, name="credentials", rich_help_panel=_CHANGE_PANEL)
app.command("hub", rich_help_panel=_RUN_PANEL)(processes.hub)
app.command("agent", rich_help_panel=_RUN_PANEL)(processes.agent)
app.command("flower", rich_help_panel=_RUN_PANEL)(processes.flower)
app.command("migrate", rich_help_panel=_LOOK_PANEL)(migrate.migrate)
app.command("crds", rich_help_panel=_LOOK_PANEL)(crds)
app.command("version", rich_help_panel=_LOOK_PANEL)(version)


def add_installed_commands(target: typer.Typer) -> None:
    """Add the commands of other installed distributions to an application.

    Prints a warning to stderr instead if the commands of a distribution cannot be loaded.
    """
    for entry in sorted(entry_points(group="dsf.commands"), key=lambda entry: entry.name):
        try:
            entry.load()(target)
        except Exception as error:  # noqa: BLE001 (third-party code)
            cause = flatten(f"{type(error).__name__}: {error}")
            typer.echo(f"warning: the commands of {entry.value} are left out: {cause}", err=True)


add_installed_commands(app)


def run() -> None:
    """Run the command line. Builds only the called command, because building all commands takes longer than that."""
    reduced_app, name = copy.copy(app), "".join(sys.argv[1:2])
    reduced_app.registered_commands = [command for command in app.registered_commands if command.name == name]
    reduced_app.registered_groups = [group for group in app.registered_groups if group.name == name]
    command_line = reduced_app if reduced_app.registered_commands or reduced_app.registered_groups else app
    # Before the help, whose library reads one of the variables.
    foreignvariables.clean(os.environ)
    try:
        with streams.prepare_streams():
            command_line(prog_name="dsf")
    except OutputError as error:
        # Handle the error here, because help texts and the end of the output are written outside of the command group.
        sys.exit(f"error: {error}")
