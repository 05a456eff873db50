"""`dsf fleet`: maintenance of the read model behind statuses, exporter and page."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from dsf.cli.group import BAD, FleetCommand
from dsf.cli.output import Format, Output, emit

app = typer.Typer(
    help="Maintain the counts behind statuses, exporter and pages.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Seconds between two polls.
_EVERY = 0.2


@app.callback()
def _group() -> None:
    """Makes typer keep the name of a group's only command."""


@app.command(cls=FleetCommand)
def rebuild(
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for the results workers.")] = 60,
    output: Output = Format.TABLE,
) -> None:
    """Recount all pairs of scorer and cluster. Results workers do so automatically after an upgrade.

    Exit code 1 if the time is too short: no results worker runs, or all are overloaded.

    Example: dsf fleet rebuild
    """
    from dsf.cli.session import session
    from dsf.fleet.model import FleetModel
    from dsf.store.model import is_whole, recount

    with session() as opened:
        recount(opened.redis)
        deadline = time.monotonic() + timeout
        while not is_whole(opened.redis):
            if time.monotonic() >= deadline:
                typer.echo(f"dsf: not done within {timeout:g} s; check that a results worker runs", err=True)
                raise typer.Exit(BAD)
            time.sleep(_EVERY)
        found = FleetModel(opened.redis).fleet()
    emit(found, output, lambda: f"{found.pairs} scorers on clusters counted: {_states(found.states.model_dump())}")


def _states(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number) or "none"
