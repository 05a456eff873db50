"""`dsf status`: prints the states of scorers and the causes of failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.group import EXIT_FAILURE
from dsf.cli.output import (
    Cell,
    Format,
    OutputOption,
    Renderable,
    emit,
    flatten,
    format_age,
    format_clock,
    make_table,
    stack_parts,
)

if TYPE_CHECKING:
    from datetime import datetime

    from dsf.cli.statusreport import StatusReport
    from dsf.fleet.views import ReasonGroup, ScorerOverview

_STYLES = {"ok": "green", "failing": "red", "unhealthy": "red", "expired": "red", "refused": "red"}


def status(
    scorer: Annotated[str | None, typer.Argument(help="Only this scorer, with its clusters, worst first.")] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the state of each scorer: health, clusters, age of the last success, and why cycles fail.

    Exit code 1 if something is failing.

    Example: dsf status sample-scorer
    """
    from dsf.cli.session import open_api_client, open_session, print_clock_offset
    from dsf.cli.statusreport import make_report, read_report

    with open_api_client() as client:
        if client is not None:
            report = make_report(client, scorer)
            print_clock_offset(client.offset)
        else:
            with open_session() as command_session:
                report = read_report(command_session.redis, command_session.settings, scorer)
    emit(report, output, lambda: _render(report, scorer))
    if report.scores is not None and len(report.scores) < report.scores_total:
        typer.echo(
            f"dsf: the worst {len(report.scores)} of {report.scores_total} clusters; `dsf scores {scorer}` shows more",
            err=True,
        )
    if not report.ok:
        raise typer.Exit(EXIT_FAILURE)


def _render(report: StatusReport, scorer_name: str | None) -> Renderable:
    parts: list[Cell | Renderable] = []
    if report.scorers:
        parts.append(_make_scorer_table(report.scorers))
    elif names := sorted({condition.scorer for condition in report.conditions}):
        parts.append(flatten(f"None of {len(names)} DynamicScorers can run yet: {', '.join(names)}"))
    else:
        parts.append("No scorer is registered. Apply a DynamicScorer and a DynamicScoringConfig.")
    if scorer_name and report.scores:
        parts += ["", _make_cluster_table(report)]
    if lines := [*(_format_config_reads(report) if scorer_name else ()), *_format_reasons(report)]:
        parts += ["", *map(flatten, lines)]
    return stack_parts(*parts)


def _make_scorer_table(scorers: list[ScorerOverview]) -> Renderable:
    from dsf.cli.statusreport import find_scorer_state

    rows = []
    for scorer in scorers:
        state = find_scorer_state(scorer)
        states = scorer.states
        rows.append(
            (
                scorer.name,
                (state, _STYLES.get(state, "yellow")),
                scorer.health_status,
                scorer.score_name,
                _format_interval(scorer),
                str(states.ok),
                (str(states.failing), "red" if states.failing else ""),
                str(states.total),
                # The youngest score of all clusters is that of the last success.
                format_age(scorer.ages.minimum),
            )
        )
    headers = ("SCORER", "STATE", "HEALTH", "SCORE", "INTERVAL", "OK", "FAILING", "CLUSTERS", "LAST SUCCESS")
    return make_table(headers, rows, right_aligned_headers=("INTERVAL", "OK", "FAILING", "CLUSTERS", "LAST SUCCESS"))


def _format_interval(scorer: ScorerOverview) -> str:
    """Return the interval in force, and the declared one if it differs."""
    declared_interval, effective_intervals = (
        scorer.interval_seconds,
        scorer.intervals_in_force or [scorer.interval_seconds],
    )
    if effective_intervals == [declared_interval]:
        return f"{declared_interval}s"
    bounds = dict.fromkeys((effective_intervals[0], effective_intervals[-1]))
    return f"{'-'.join(f'{seconds}s' for seconds in bounds)} (declared {declared_interval}s)"


def _make_cluster_table(report: StatusReport) -> Renderable:
    rows: list[list[Cell]] = []
    for score in report.scores or []:
        reason = f"{score.failure.stage} {score.failure.reason}".strip() if score.failure else ""
        if score.remark and not reason:
            reason = score.remark.reason
        if score.skips and not reason:
            reason = f"{score.skips.reason}, {score.skips.ticks} not sent"
        state = score.state.value
        rows.append(
            [
                score.cluster,
                (state, _STYLES.get(state, "yellow")),
                str(len(score.items)),
                format_age(score.age_seconds),
                str(score.failing),
                reason,
            ]
        )
    headers = ("CLUSTER", "STATE", "ITEMS", "LAST SUCCESS", "FAILED IN A ROW", "REASON")
    return make_table(headers, rows, right_aligned_headers=("ITEMS", "LAST SUCCESS", "FAILED IN A ROW"))


def _format_pauses(report: StatusReport) -> list[str]:
    """Return a line for each pause of the scorers in the report: its author, its end and its note."""
    lines = []
    for pause in report.pauses:
        cluster, _, scorer = pause.target.partition("/")
        end_text = f" until {format_clock(pause.paused_until)}" if pause.paused_until else " until it is resumed"
        note = f": {pause.note}" if pause.note else ""
        cluster_text = "" if cluster == "*" else f" on {cluster}"
        lines.append(f"{scorer}{cluster_text}: paused by {pause.by or 'unknown'}{end_text}{note}")
    return lines


def _format_config_reads(report: StatusReport) -> list[str]:
    """Return a line with the age of each /config, because a change of it applies only after the next read."""
    return [
        f"{scorer.name}: config read {format_age((report.at - scorer.config_read).total_seconds())} ago; "
        f"`dsf sync {scorer.name}` reads it now"
        for scorer in report.scorers
        if scorer.config_read is not None
    ]


def _format_clusters(group: ReasonGroup) -> str:
    further_clusters = group.clusters - 1
    return f"{group.cluster} and {further_clusters} more" if further_clusters else group.cluster


def _format_reason(group: ReasonGroup, scorer: ScorerOverview, now: datetime) -> str:
    """Return the text after the scorer's name in the line of a reason."""
    if group.state.value in ("empty", "ok"):
        problem = "no score" if group.state.value == "empty" else "not all results count"
        cluster_counts = f"{group.clusters} of {scorer.states.total} clusters"
        return f": {problem} on {cluster_counts}: {group.reason}: {group.cluster}: {group.message}"
    duration = format_age((now - (group.since or group.at or now)).total_seconds())
    if group.since is not None:
        return (
            f" on {_format_clusters(group)}: {group.reason}: no ticks were sent since {duration} ago: {group.message}"
        )
    failure = f"{group.stage} failed ({group.reason})" if group.stage else group.reason
    return f" on {_format_clusters(group)}: {failure} {duration} ago: {group.message}"


def _format_reasons(report: StatusReport) -> list[str]:
    """Return a line for each problem and for each reason why scores are missing."""
    from dsf.api.score import describe_validity_gap

    lines = []
    for scorer in report.scorers:
        if scorer.problem:
            lines.append(f"{scorer.name}: runs nowhere: {scorer.problem}")
        longest_interval = max(scorer.intervals_in_force, default=scorer.interval_seconds)
        if text := describe_validity_gap(longest_interval, scorer.validity_seconds, scorer.interval_seconds):
            lines.append(f"{scorer.name}: {text}")
        lines += [f"{scorer.name}{_format_reason(group, scorer, report.at)}" for group in scorer.reasons]
        if hidden_count := scorer.reasons_total - len(scorer.reasons):
            lines.append(f"{scorer.name}: {hidden_count} more reasons")
    lines += _format_pauses(report)
    lines += [
        f"{condition.scorer}: {condition.type}={condition.status} ({condition.reason}): {condition.message}"
        for condition in report.conditions
    ]
    return lines + [
        f"{problem.location}: {problem.message}" if problem.location else problem.message for problem in report.problems
    ]
