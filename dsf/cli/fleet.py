"""`dsf fleet`: the read model, which statuses, the exporter and the page are made from."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from dsf.cli.group import BAD, FleetCommand
from dsf.cli.output import Format, Output, emit

app = typer.Typer(
    help="What statuses, the exporter and pages count by.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Seconds between two looks.
_EVERY = 0.2


@app.callback()
def _group() -> None:
    """So that the one command keeps its name."""


@app.command(cls=FleetCommand)
def rebuild(
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for the results workers.")] = 60,
    output: Output = Format.TABLE,
) -> None:
    """Count all scorers on all clusters again. Results workers do so by themselves after an upgrade.

    Exit code 1 when they have not done it in time: no results worker runs, or all have too much to do.

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
