"""`dsf schedule`: lists the schedule, and changes intervals and pauses.

A change overrides the controller's entries. It survives restarts and re-applied manifests until `dsf schedule
reset`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.duration import SelectorOption, parse_pause_end, parse_seconds
from dsf.cli.group import EXIT_FAILURE, FleetCommand
from dsf.cli.localuser import AsOption, make_actor
from dsf.cli.output import (
    DEFAULT_TABLE_LIMIT,
    Cell,
    Format,
    LimitOption,
    OutputOption,
    Renderable,
    emit,
    format_age,
    format_clock,
    format_time_until,
    get_table_limit,
    make_table,
    print_omission_note,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsf.api.acts import Act
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
ClustersOption = Annotated[
    list[str] | None,
    typer.Option("--cluster", "-c", help="Only on this cluster; may be repeated. Default: on all clusters."),
]
NoteOption = Annotated[str, typer.Option("--note", help="Reason, shown in `dsf schedule list`.")]


@app.command("list", cls=FleetCommand)
def list_(
    scorer: Annotated[str | None, typer.Argument(help="Only this scorer.")] = None,
    cluster: ClusterOption = None,
    limit: LimitOption = DEFAULT_TABLE_LIMIT,
    output: OutputOption = Format.TABLE,
) -> None:
    """List entries: current interval, next run, pauses, who changed what.

    Example: dsf schedule list sample-scorer
    """
    from dsf.cli.session import open_data_source

    with open_data_source() as fleet:
        _print_schedule(fleet.schedule(cluster, scorer, limit=get_table_limit(limit, output)), output)


@app.command("set", cls=FleetCommand)
def set_(
    scorer: ScorerArgument,
    interval: Annotated[
        int,
        typer.Option(
            "--interval", "-i", parser=parse_seconds, metavar="TIME", help="Seconds, or for example 5m or 1h30m."
        ),
    ],
    clusters: ClustersOption = None,
    selector: SelectorOption = None,
    note: NoteOption = "",
    author: AsOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Set the interval. It takes effect within a second.

    Example: dsf schedule set sample-scorer --interval 5 --note "incident 42"
    """
    if interval < 1:
        raise typer.BadParameter("must be at least 1 second", param_hint="--interval")
    _apply_change(scorer, "interval", f"{interval}s", clusters, selector, note, output, author)


@app.command(cls=FleetCommand)
def pause(
    scorer: ScorerArgument,
    clusters: ClustersOption = None,
    selector: SelectorOption = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="ISO 8601 (local time unless it has a zone), or a duration such as 2h."
        ),
    ] = None,
    note: NoteOption = "",
    author: AsOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Stop sending ticks, for a time or until resumed. Existing scores expire as usual.

    Example: dsf schedule pause sample-scorer --cluster worker01 --until 2h
    """
    if end is not None:
        # Check the syntax before connecting to the hub. Use 0 as the current time, because the hub's is not known yet.
        parse_pause_end(end, 0.0)
    _apply_change(scorer, "pause", end or "", clusters, selector, note, output, author)


@app.command(cls=FleetCommand)
def resume(
    scorer: ScorerArgument,
    clusters: ClustersOption = None,
    selector: SelectorOption = None,
    note: NoteOption = "",
    author: AsOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """End a pause and send ticks again immediately. Also overrides `suspend` in the DynamicScorer, until `reset`.

    Example: dsf schedule resume sample-scorer --cluster worker01
    """
    _apply_change(scorer, "resume", "", clusters, selector, note, output, author)


@app.command(cls=FleetCommand)
def reset(
    scorer: ScorerArgument,
    clusters: ClustersOption = None,
    selector: SelectorOption = None,
    note: NoteOption = "",
    author: AsOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Remove overrides: the scorer's declared interval applies again. Without --cluster, on all clusters.

    Example: dsf schedule reset sample-scorer
    """
    _apply_change(scorer, "reset", "", clusters, selector, note, output, author)


def _apply_change(
    scorer: str,
    act: Act,
    value: str,
    clusters: list[str] | None,
    selector: str | None,
    note: str,
    output: Format,
    author: str | None,
) -> None:
    """Apply the change, print the result, and name each cluster that keeps its own interval or pause.

    `value` is the interval, or the end of a pause as the user wrote it; empty for other acts.
    """
    from dsf.api.acts import make_request, parse_request
    from dsf.api.meta import format_rfc3339
    from dsf.api.score import describe_validity_gap
    from dsf.cli.session import open_kube_hub, open_session
    from dsf.fleet.actions import Actions, make_targets
    from dsf.fleet.queries import FleetQueries
    from dsf.store.registry import Registry

    if clusters and selector:
        raise typer.BadParameter("goes without --cluster", param_hint="--selector")

    def make_request_at(now: float) -> str:
        """Return the request at `now` (unix seconds)."""
        # Convert the end of a pause to UTC, because the hub may be in another time zone.
        end = (
            format_rfc3339(datetime.fromtimestamp(parse_pause_end(value, now), UTC))
            if act == "pause" and value
            else value
        )
        return make_request(end, at=f"{now:.3f}", clusters=clusters or (), selector=selector or "", note=note)

    with open_kube_hub() as hub:
        if hub is not None:
            from dsf.cli.kubehub import RESPONSE_SECONDS, print_response

            request_text = make_request_at(hub.read_time())
            response = hub.request_act(scorer, act, request_text, author=author, timeout=RESPONSE_SECONDS)
            print_response(scorer, response, output)
            if response.outcome != "Done":
                raise typer.Exit(EXIT_FAILURE)
            return
    with open_session() as command_session:
        from dsf.process import hubclock

        now = hubclock.now()
        request = parse_request(act, make_request_at(now))
        actions = Actions(command_session.redis, command_session.settings, make_actor(author))
        clusters = actions.execute(
            scorer, request, pause_end=parse_pause_end(value) if act == "pause" and value else None
        )
        # Also read the clusters that keep their own interval or pause, because they are named below.
        schedule = FleetQueries(command_session.redis).schedule(clusters[0] if len(clusters) == 1 else None, scorer)
        record = Registry(command_session.redis).read_scorer(scorer)
    if len(clusters) > 1:
        entries = [entry for entry in schedule.entries if entry.cluster in clusters]
        schedule = schedule.model_copy(update={"entries": entries, "total": len(entries)})
    if request.act == "interval" and (
        text := describe_validity_gap(request.interval, record.validity, record.interval)
    ):
        typer.echo(f"warning: {text}", err=True)
    if request.act in ("interval", "pause") and not schedule.entries and output is Format.TABLE:
        cluster_names = " and ".join(clusters) or "a cluster"
        typer.echo(f"stored; it applies as soon as {scorer} runs on {cluster_names}. `dsf changes` shows it")
        return
    _print_schedule(schedule, output)
    if request.act != "reset":
        _print_exceptions(schedule, request.act, make_targets(scorer, clusters))


def _print_exceptions(schedule: ScheduleList, act: str, targets: Sequence[str]) -> None:
    """Print to stderr which clusters keep their own interval or pause.

    `targets` are the targets of the applied override.
    """
    for entry in schedule.entries:
        setting_source = entry.interval_source if act == "interval" else entry.paused_source or targets[0]
        exception_text = ""
        if act == "pause" and not entry.paused:
            exception_text = "is not paused: a user resumed it there"
        elif setting_source not in (*targets, "entry"):
            own_setting = f"interval of {entry.interval_seconds}s" if act == "interval" else "own pause"
            exception_text = f"keeps its {own_setting}"
        if exception_text:
            typer.echo(
                f"note: {entry.cluster} {exception_text}; end that with `dsf schedule reset {entry.scorer} --cluster "
                f"{entry.cluster}`",
                err=True,
            )


def _print_schedule(schedule: ScheduleList, output: Format) -> None:
    emit(schedule, output, lambda: _render(schedule))
    print_omission_note(len(schedule.entries), schedule.total)


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
                format_time_until(entry.next_run, schedule.at),
                format_age(entry.lag_seconds) if entry.lag_seconds else "-",
                _format_state(entry),
                "; ".join(_format_author(override) for override in entry.overrides),
            ]
        )
    headers = ("CLUSTER", "SCORER", "INTERVAL", "SCORER SAYS", "NEXT RUN", "LATE", "STATE", "CHANGED BY")
    return make_table(headers, rows, right_aligned_headers=("INTERVAL", "SCORER SAYS", "NEXT RUN", "LATE"))


def _format_state(entry: EntryView) -> tuple[str, str]:
    if not entry.paused:
        return ("running", "green") if entry.next_run else ("inactive", "red")
    state = "suspended" if entry.paused_source == "entry" else "paused"
    return (f"{state} until {format_clock(entry.paused_until)}" if entry.paused_until else state), "yellow"


def _format_author(override: OverrideView) -> str:
    scope_text = " everywhere" if override.target.startswith("*/") else ""
    note = f": {override.note}" if override.note else ""
    return f"{override.by or 'unknown'}{scope_text}{note}"
