"""`dsf rescore` sends ticks immediately; `dsf sync` has the hub read a scoring API's /config immediately."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsf.cli.duration import SelectorOption, parse_seconds
from dsf.cli.group import EXIT_FAILURE
from dsf.cli.localuser import AsOption, make_actor
from dsf.cli.output import Cell, Format, OutputOption, Renderable, emit, flatten, make_table, stack_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsf.cli.kubehub import KubeHub
    from dsf.fleet.rescore import RescoreReport

#: Default timeout of `--wait` in seconds, which is longer than the timeout of a slow stage.
_DEFAULT_TIMEOUT_SECONDS = 60
_STYLES = {"ok": "green", "empty": "yellow", "partial": "yellow"}


def rescore(
    scorer: Annotated[str, typer.Argument(help="Name of the DynamicScorer.")],
    clusters: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster", "-c", help="Only on this cluster; may be repeated. Default: every cluster on which it runs."
        ),
    ] = None,
    selector: SelectorOption = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the new scores and print them.")] = False,
    timeout: Annotated[
        int | None,
        typer.Option(
            "--timeout",
            parser=parse_seconds,
            metavar="TIME",
            help=f"Timeout of --wait: seconds, or for example 2m. [default: {_DEFAULT_TIMEOUT_SECONDS}]",
        ),
    ] = None,
    note: Annotated[str, typer.Option("--note", help="Reason, shown in `dsf changes`.")] = "",
    author: AsOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Send a tick now. This does not change the schedule and ignores pauses.

    With --wait, exit code 1 if a cycle ends without a score, also when the response was valid and none of its results
    count; the reason is printed.

    Example: dsf rescore sample-scorer --cluster worker01 --wait
    """
    if timeout is not None and not wait:
        raise typer.BadParameter("goes with --wait", param_hint="--timeout")
    if clusters and selector is not None:
        raise typer.BadParameter("goes without --cluster", param_hint="--selector")
    from dsf.cli.session import open_kube_hub, open_session
    from dsf.fleet import rescore as rescoring
    from dsf.fleet.actions import Actions

    timeout_seconds = _DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout
    with open_kube_hub() as hub:
        if hub is not None:
            request_fields = {"clusters": clusters or (), "selector": selector or "", "note": note}
            _rescore_by_annotation(hub, scorer, request_fields, author, timeout_seconds if wait else None, output)
            return
    with open_session() as command_session:
        actions = Actions(command_session.redis, command_session.settings, make_actor(author))
        if selector is not None:
            from dsf.api.acts import parse_selector

            clusters = actions.select_clusters(scorer, parse_selector(selector))
        runs = actions.rescore(scorer, clusters, note=note)
        if wait:
            deadline = time.monotonic() + timeout_seconds
            try:
                report = rescoring.wait_for_end(command_session.redis, scorer, runs, deadline)
            except KeyboardInterrupt:
                _print_progress(rescoring.wait_for_end(command_session.redis, scorer, runs, time.monotonic()))
                raise
        else:
            report = rescoring.make_unfinished_report(scorer, runs)
    emit(report, output, lambda: _render(report))
    if wait and any(map(rescoring.is_open, report.runs)):
        _print_timeout(scorer, timeout_seconds)
    if not all(run.has_score if wait else run.run_id for run in report.runs):
        raise typer.Exit(EXIT_FAILURE)


def _rescore_by_annotation(
    hub: KubeHub,
    scorer: str,
    request_fields: Mapping[str, Any],
    author: str | None,
    timeout_seconds: int | None,
    output: Format,
) -> None:
    """Request cycles by an annotation, and wait up to `timeout_seconds` until they have ended.

    If it is None, wait only until the ticks are sent.
    """
    from dsf.api.acts import make_request
    from dsf.cli.kubehub import RESPONSE_SECONDS, print_response

    response = hub.request_act(
        scorer,
        "rescore",
        make_request("", at=f"{hub.read_time():.3f}", **request_fields),
        author=author,
        timeout=RESPONSE_SECONDS if timeout_seconds is None else timeout_seconds,
        is_enough=lambda response: response.outcome != "Running" or (timeout_seconds is None and response.clusters > 0),
    )
    print_response(scorer, response, output)
    if timeout_seconds is not None and response.outcome == "Running":
        _print_timeout(scorer, timeout_seconds)
    if response.outcome != "Done" and (timeout_seconds is not None or response.outcome == "Refused"):
        raise typer.Exit(EXIT_FAILURE)


def _print_timeout(scorer: str, timeout_seconds: int) -> None:
    """Print to stderr that cycles are still running after the timeout."""
    typer.echo(
        f"dsf: not all cycles have ended within {timeout_seconds} s, they go on: `dsf status {scorer}` says whether "
        f"the agents run, `dsf history {scorer} --cluster CLUSTER` will say how they ended; --timeout waits longer",
        err=True,
    )


def _print_progress(report: RescoreReport) -> None:
    """Print to stderr how many cycles have ended before Ctrl-C."""
    sent_runs = [run for run in report.runs if run.run_id]
    ended_count = sum(bool(run.outcome) for run in sent_runs)
    typer.echo(
        f"dsf: interrupted; {ended_count} of {len(sent_runs)} cycles have ended, the others go on: "
        f"`dsf history {report.scorer} --cluster CLUSTER` will say how they ended",
        err=True,
    )


def _render(report: RescoreReport) -> Renderable:
    from dsf.cli.scores import render_scores
    from dsf.fleet.views import ScoreList

    rows: list[list[Cell]] = []
    for run in report.runs:
        outcome = run.outcome or ("sent" if run.run_id else "not sent")
        style = _STYLES.get(outcome, "" if outcome == "sent" else "red")
        stage = f"{run.stage}: " if run.stage else ""
        cause = f"{stage}{run.reason}: {run.message}" if run.reason else run.message
        rows.append([run.cluster, run.run_id or "-", (outcome, style), cause])
    runs = make_table(("CLUSTER", "RUN", "OUTCOME", "REASON"), rows)
    if not report.scores:
        return runs
    return stack_parts(runs, "", render_scores(ScoreList(at=report.at, scores=report.scores)))


def sync(
    scorer: Annotated[str, typer.Argument(help="Name of the DynamicScorer.")],
    timeout: Annotated[
        int,
        typer.Option(
            "--timeout",
            parser=parse_seconds,
            metavar="TIME",
            help="Seconds to wait for the controller, or for example 1m.",
        ),
        # Longer than the hub waits for a scoring API.
    ] = 15,
    note: Annotated[str, typer.Option("--note", help="Reason, shown in `dsf changes`.")] = "",
    author: AsOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Have the controller read /config now, which it otherwise does every 30 seconds, and wait for it.

    Exit code 1 if there was no valid response, or none in time.

    Example: dsf sync sample-scorer
    """
    from dsf.cli.session import open_kube_hub, open_session
    from dsf.fleet.actions import Actions
    from dsf.fleet.changes import parse_change_id
    from dsf.fleet.views import SyncReport
    from dsf.store.notices import Notices

    with open_kube_hub() as hub:
        if hub is not None:
            from dsf.api.acts import make_request
            from dsf.cli.kubehub import print_response

            value = make_request("", at=f"{hub.read_time():.3f}", note=note)
            response = hub.request_act(scorer, "sync", value, author=author, timeout=timeout)
            print_response(scorer, response, output)
            if response.outcome != "Done":
                raise typer.Exit(EXIT_FAILURE)
            return
    with open_session() as command_session:
        request = Actions(command_session.redis, command_session.settings, make_actor(author)).sync(scorer, note=note)
        notices, deadline = Notices(command_session.redis), time.monotonic() + timeout
        while (config_read := notices.read_config_read(scorer)) is None or parse_change_id(
            config_read.request or "0"
        ) < parse_change_id(request):
            if time.monotonic() >= deadline:
                typer.echo(f"dsf: /config was not read within {timeout} s; check that the controller runs", err=True)
                raise typer.Exit(EXIT_FAILURE)
            time.sleep(0.1)
    report = SyncReport(scorer=scorer, config_read=config_read.at or None, problem=config_read.problem)
    emit(report, output, lambda: flatten(f"{scorer}: {report.problem or '/config was read'}"))
    if report.problem:
        raise typer.Exit(EXIT_FAILURE)
