"""`dsf schedule`: intervals, pauses and other overrides.

A change is an override on top of the hub controller's entries: it survives restarts and re-applied manifests until `dsf
schedule reset`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dsf.cli.duration import moment, seconds
from dsf.cli.group import FleetCommand
from dsf.cli.localuser import AsOption, actor
from dsf.cli.output import (
    TABLE_PAIRS,
    Cell,
    Format,
    Limit,
    Output,
    Renderable,
    age,
    clock,
    emit,
    print_omitted_rows,
    table,
    table_limit,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsf.fleet.actions import Actions
    from dsf.fleet.views import EntryView, OverrideView, ScheduleList

app = typer.Typer(
    help="List and change how often scorers run. Changes stay until reset.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ScorerArgument = Annotated[str, typer.Argument(help="Name of the DynamicScorer.")]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", "-c", help="Only on this cluster; without it on all clusters.")
]
NoteOption = Annotated[str, typer.Option("--note", help="Reason, shown in `dsf schedule list`.")]


@app.command("list", cls=FleetCommand)
def list_(
    scorer: Annotated[str | None, typer.Argument(help="Only this scorer.")] = None,
    cluster: ClusterOption = None,
    limit: Limit = TABLE_PAIRS,
    output: Output = Format.TABLE,
) -> None:
    """List entries: current interval, next run, pauses, who changed what.

    Example: dsf schedule list sample-scorer
    """
    from dsf.cli.session import looking

    with looking() as fleet:
        _show(fleet.schedule(cluster, scorer, limit=table_limit(limit, output)), output)


@app.command("set", cls=FleetCommand)
def set_(
    scorer: ScorerArgument,
    interval: Annotated[
        int,
        typer.Option("--interval", "-i", parser=seconds, metavar="TIME", help="Seconds, or for example 5m or 1h30m."),
    ],
    cluster: ClusterOption = None,
    note: NoteOption = "",
    name: AsOption = None,
    output: Output = Format.TABLE,
) -> None:
    """Set the interval. It takes effect within a second.

    Example: dsf schedule set sample-scorer --interval 5 --note "incident 42"
    """
    if interval < 1:
        raise typer.BadParameter("must be at least 1 second", param_hint="--interval")
    _change(
        scorer,
        cluster,
        output,
        name,
        lambda actions: actions.set_interval(scorer, cluster, interval, note=note),
        "interval",
        interval,
    )


@app.command(cls=FleetCommand)
def pause(
    scorer: ScorerArgument,
    cluster: ClusterOption = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="ISO 8601 (local time unless it has a zone), or a duration such as 2h."
        ),
    ] = None,
    note: NoteOption = "",
    name: AsOption = None,
    output: Output = Format.TABLE,
) -> None:
    """Stop sending ticks, for a time or until resumed. Existing scores expire as usual.

    Example: dsf schedule pause sample-scorer --cluster worker01 --until 2h
    """
    if end is not None:
        # A mistake in it needs no hub; whether it is in the past, only the hub knows.
        moment(end, 0.0)

    def act(actions: Actions) -> None:
        actions.pause(scorer, cluster, None if end is None else moment(end), note=note)

    _change(scorer, cluster, output, name, act, "pause")


@app.command(cls=FleetCommand)
def resume(
    scorer: ScorerArgument,
    cluster: ClusterOption = None,
    note: NoteOption = "",
    name: AsOption = None,
    output: Output = Format.TABLE,
) -> None:
    """End a pause and send ticks again immediately. Also overrides `suspend` in the DynamicScorer, until `reset`.

    Example: dsf schedule resume sample-scorer --cluster worker01
    """
    _change(scorer, cluster, output, name, lambda actions: actions.resume(scorer, cluster, note=note), "resume")


@app.command(cls=FleetCommand)
def reset(
    scorer: ScorerArgument,
    cluster: ClusterOption = None,
    note: NoteOption = "",
    name: AsOption = None,
    output: Output = Format.TABLE,
) -> None:
    """Remove overrides: the scorer's declared interval applies again. Without --cluster, on all clusters.

    Example: dsf schedule reset sample-scorer
    """
    _change(scorer, cluster, output, name, lambda actions: actions.reset(scorer, cluster, note=note), None)


def _change(
    scorer: str,
    cluster: str | None,
    output: Format,
    name: str | None,
    act: Callable[[Actions], object],
    changed: Literal["interval", "pause", "resume"] | None,
    interval: int | None = None,
) -> None:
    """Apply the change, show the result, and name each cluster that keeps its own interval or pause."""
    from dsf.api.score import describe_validity_gap
    from dsf.cli.session import session
    from dsf.fleet.actions import Actions, target_of
    from dsf.fleet.queries import FleetQueries
    from dsf.store.registry import Registry

    with session() as opened:
        act(Actions(opened.redis, opened.settings, actor(name)))
        # All entries: those with their own override are named below.
        schedule = FleetQueries(opened.redis).schedule(cluster, scorer)
        record = Registry(opened.redis).scorer(scorer)
    if interval is not None and (text := describe_validity_gap(interval, record.validity, record.interval)):
        typer.echo(f"warning: {text}", err=True)
    if changed in ("interval", "pause") and not schedule.entries and output is Format.TABLE:
        typer.echo(f"stored; it applies as soon as {scorer} runs on {cluster or 'a cluster'}. `dsf changes` shows it")
        return
    _show(schedule, output)
    target = target_of(scorer, cluster)
    for entry in schedule.entries if changed else ():
        setting_source = entry.interval_source if changed == "interval" else entry.paused_source or target
        what = ""
        if changed == "pause" and not entry.paused:
            what = "is not paused: a user resumed it there"
        elif setting_source not in (target, "entry"):
            what = f"keeps its {f'interval of {entry.interval_seconds}s' if changed == 'interval' else 'own pause'}"
        if what:
            typer.echo(
                f"note: {entry.cluster} {what}; end that with `dsf schedule reset {scorer} --cluster {entry.cluster}`",
                err=True,
            )


def _show(schedule: ScheduleList, output: Format) -> None:
    emit(schedule, output, lambda: _render(schedule))
    print_omitted_rows(len(schedule.entries), schedule.total)


def _render(schedule: ScheduleList) -> Renderable:
    if not schedule.entries:
        return "Nothing is scheduled. `dsf status` lists the scorers and their states."
    rows: list[list[Cell]] = []
    for entry in schedule.entries:
        is_overridden = entry.interval_source != "entry"
        rows.append(
            [
                entry.cluster,
                entry.scorer,
                (f"{entry.interval_seconds}s", "yellow" if is_overridden else ""),
                f"{entry.entry_interval_seconds}s",
                until(entry.next_run, schedule.at),
                age(entry.lag_seconds) if entry.lag_seconds else "-",
                _state(entry),
                "; ".join(_who_and_why(override) for override in entry.overrides),
            ]
        )
    headers = ("CLUSTER", "SCORER", "INTERVAL", "SCORER SAYS", "NEXT RUN", "LATE", "STATE", "CHANGED BY")
    return table(headers, rows, right=("INTERVAL", "SCORER SAYS", "NEXT RUN", "LATE"))


def _state(entry: EntryView) -> tuple[str, str]:
    if not entry.paused:
        return ("running", "green") if entry.next_run else ("inactive", "red")
    what = "suspended" if entry.paused_source == "entry" else "paused"
    return (f"{what} until {clock(entry.paused_until)}" if entry.paused_until else what), "yellow"


def _who_and_why(override: OverrideView) -> str:
    everywhere = " everywhere" if override.target.startswith("*/") else ""
    note = f": {override.note}" if override.note else ""
    return f"{override.by or 'unknown'}{everywhere}{note}"
