"""`dsf demo`: two clusters with real Prometheus servers and real scores on this machine, until Ctrl-C."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.group import EXIT_FAILURE, EXIT_INTERRUPTED
from dsf.up.command import START_TIMEOUT, RedisFileOption, RedisOption, announce_stack, find_foreign_redis, say

if TYPE_CHECKING:
    from dsf.demo.fleet import Fleet
    from dsf.demo.report import DemoReport
    from dsf.up.supervisor import Supervisor

#: With --once, seconds within which every pair must have a score.
ONCE_TIMEOUT = 60.0
#: With --once, seconds between two checks for scores.
_ONCE_TICK = 0.1


def add(app: typer.Typer) -> None:
    """Add the command to `dsf`."""
    app.command(rich_help_panel="Run a process")(demo)


def _split_names(comma_separated: str) -> list[str]:
    return [name for part in comma_separated.split(",") if (name := part.strip())]


def _check_names(comma_separated: str) -> str:
    """Return the names in --with. Raises typer.BadParameter for an unknown name."""
    from dsf.demo.extras import EXTRAS

    for name in _split_names(comma_separated):
        if name not in EXTRAS:
            choices = ", ".join(f"{extra_name} ({extra.help})" for extra_name, extra in EXTRAS.items())
            raise typer.BadParameter(f"{name!r} is not one of {choices}")
    return comma_separated


def demo(
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Exit when every cluster has every score: 0; after 60 s: 1 and the reasons; interrupted: 130.",
        ),
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", help="Keep the manifests in this folder; the demo picks up edits.", file_okay=False),
    ] = None,
    with_: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="NAME,...",
            help="Run more scorers: prediction (forecasts), resource-usage (free resources).",
            callback=_check_names,
        ),
    ] = "",
    redis_url: RedisOption = None,
    redis_url_file: RedisFileOption = None,
) -> None:
    """Run two clusters with real Prometheus servers and real scores on this machine. Ctrl-C ends everything.

    Missing programs (Prometheus, the node exporter) are unpacked from Debian packages into ~/.cache/dsf; nothing is
    installed.

    Example: dsf demo --keep my-demo --with prediction,resource-usage
    """
    from dsf.demo.fleet import Fleet
    from dsf.up.statefolder import get_default_state_dir, lock_state
    from dsf.up.supervisor import run_supervisor

    foreign = find_foreign_redis(redis_url, redis_url_file)
    with ExitStack() as cleanup:
        if keep is None:
            folder = Path(tempfile.mkdtemp(prefix="dsf-demo-"))
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
            manifests, state_dir = folder / "manifests", folder / "state"
        else:
            manifests = folder = keep.resolve()
            state_dir = get_default_state_dir(manifests)
        cleanup.enter_context(lock_state(state_dir))
        try:
            with run_supervisor(state_dir, say) as supervisor:
                fleet = Fleet(manifests, state_dir, foreign, supervisor, say, _split_names(with_), has_flower=not once)
                fleet.prepare()
                started = time.time()
                fleet.start_clusters()
                with fleet.stack:
                    fleet.start()
                    # Imported late, so that the processes load meanwhile.
                    from dsf.demo.report import DemoReport

                    report = DemoReport(fleet.stack.client, manifests, fleet.out_dir)
                    with announce_stack(fleet.stack, folder.name, fleet.host_aliases):
                        if once:
                            _run_once(fleet, supervisor, report, started)
                        else:
                            _watch(fleet, supervisor, report)
        except KeyboardInterrupt:
            say(f"all processes have ended; the manifests are in {manifests}" if keep else "all processes have ended")
            if once:
                # An interrupt is no success for a script that waits for scores.
                raise typer.Exit(EXIT_INTERRUPTED) from None


def _run_once(fleet: Fleet, supervisor: Supervisor, report: DemoReport, started: float) -> None:
    """Wait until every pair has a score, then print the table. Exits with 1 and the reasons on failure."""
    import redis

    from dsf.cli.output import make_console
    from dsf.demo.screen import render_table

    console = make_console()
    while True:
        fleet.tick()
        try:
            missing_scores = report.explain_missing_scores(started)
        except redis.RedisError as error:
            missing_scores = {"Redis": str(error)}
        if not missing_scores or time.time() >= started + ONCE_TIMEOUT:
            break
        time.sleep(_ONCE_TICK)
    console.print(render_table(report.read_lines()))
    if not missing_scores:
        say(f"every cluster has every score, {time.time() - started:.0f} s after the start")
        return
    say(f"not every pair has a score after {ONCE_TIMEOUT:g} s:")
    for name, why in [*missing_scores.items(), *supervisor.failures().items()]:
        say(f"  {name} {why}")
    for problem in report.read_problems():
        say(f"  {problem}")
    for name in fleet.stack.process_names:
        if name in supervisor:
            say(f"  the log of {name} ends with:\n{supervisor.tail(name)}")
    raise typer.Exit(EXIT_FAILURE)


def _watch(fleet: Fleet, supervisor: Supervisor, report: DemoReport) -> None:
    """Show the table until Ctrl-C: in place on a terminal, else a line per change."""
    from dsf.demo import live

    say("starting; the first scores come within seconds")
    supervisor.wait_ready(START_TIMEOUT, meanwhile=fleet.tick)
    footer = live.list_addresses(fleet)
    if sys.stdout.isatty():
        live.show_on_terminal(report, footer, fleet.tick, supervisor.failures)
    else:
        live.print_lines(report, footer, fleet.tick)
