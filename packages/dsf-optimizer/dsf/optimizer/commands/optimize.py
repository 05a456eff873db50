"""`dsf optimize`: compute, apply and reset plans."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsf.cli.group import EXIT_FAILURE
from dsf.cli.localuser import AsOption
from dsf.cli.output import Format, OutputOption, emit, format_number, make_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsf.optimizer.params import OptimizeParams
    from dsf.optimizer.service import OptimizerService
    from dsf.optimizer.settings import OptimizerSettings
    from dsf.optimizer.views import ExplanationView, PlanReport, ResetReport

_CHANGE_STYLES = {"created": "green", "updated": "yellow", "deleted": "red"}


def optimize(
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Parameters of the plan, JSON or YAML; - is standard input.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the changes; write nothing.")] = False,
    reset: Annotated[
        str | None, typer.Option("--reset", metavar="NAMESPACE", help="Delete the objects of plans in this namespace.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Also draw the plan to a .png or .svg file.", dir_okay=False)
    ] = None,
    name: AsOption = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Find the best plan for workloads and apply it in place of the previous one.

    Reads and writes the hub with your own kubeconfig. Exit code 1 if a workload is left unplaced.

    Example: dsf optimize -f params.json --dry-run --plot plan.png
    """
    if (file is None) == (reset is None):
        raise typer.BadParameter("give either --file or --reset")
    if reset is not None:
        _check_reset(reset, plot)
    from dsf.cli.localuser import get_local_user
    from dsf.optimizer.service import make_service

    # Handle SIGTERM like Ctrl-C, so that an incomplete write is rolled back.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    service = make_service(_read_settings(), "cli", name or get_local_user())
    try:
        if reset is not None:
            reset_report = service.reset(reset, dry_run=dry_run)
            emit(reset_report, output, lambda: _render_reset(reset_report))
            return
        report = _make_plan(service, read_params(file or Path("-")), dry_run=dry_run, plot=plot)
    finally:
        service.close()
    emit(report, output, lambda: render(report))
    if report.unplaced:
        raise typer.Exit(EXIT_FAILURE)


def _read_settings() -> OptimizerSettings:
    """Return the settings of the environment, ignoring a running demo, which has no workloads.

    Raises SettingsError without a hub on Kubernetes.
    """
    import dsf.log
    from dsf.cli.session import add_kubeconfig, limit_log_level
    from dsf.errors import SettingsError
    from dsf.optimizer.settings import OptimizerSettings

    settings = add_kubeconfig(OptimizerSettings.load())
    if settings.kubeconfig is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise SettingsError(
            "dsf optimize needs a hub on Kubernetes: workloads, policies and Placements are objects there, which "
            "the demo and `dsf up` do not have. Set KUBECONFIG or DSF_KUBECONFIG; see docs/optimization.md"
        )
    dsf.log.prepare(limit_log_level(settings))
    return settings


def _check_reset(namespace: str, plot: Path | None) -> None:
    """Raise BadParameter for invalid arguments, in particular an empty name from an unset shell variable."""
    from pydantic import ValidationError

    from dsf.optimizer.params import ResetParams

    try:
        ResetParams.model_validate({"namespace": namespace})
    except ValidationError:
        raise typer.BadParameter(f"{namespace!r} is not a valid namespace name", param_hint="--reset") from None
    if plot is not None:
        raise typer.BadParameter("not allowed with --reset, which draws no plan", param_hint="--plot")


def read_params(file: Path) -> OptimizeParams:
    """Read a request from a file. Raises ManifestError naming file, field and allowed values."""
    from pydantic import ValidationError

    from dsf.errors import ManifestError
    from dsf.optimizer.params import OptimizeParams
    from dsf.optimizer.requestbody import format_errors

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        content = _parse_document(text)
    except OSError as error:
        raise ManifestError(f"cannot read {file}: {error.strerror}") from None
    except ManifestError as error:
        raise ManifestError(f"{file}: {error}") from None
    except ValueError as error:
        raise ManifestError(f"{file} is neither JSON nor YAML: {error}") from None
    try:
        return OptimizeParams.model_validate(content)
    except ValidationError as error:
        raise ManifestError(f"{file}: {format_errors(error.errors(include_url=False, include_input=False))}") from None


def _parse_document(text: str) -> Any:
    """Parse JSON or YAML. Raises ManifestError for a duplicate key, and ValueError with both parsers' errors."""
    from dsf.api import kubeyaml
    from dsf.optimizer.requestbody import load_json

    try:
        # Try JSON first, because YAML forbids tabs.
        return load_json(text)
    except ValueError as json_error:
        try:
            return kubeyaml.load(text)
        except ValueError as yaml_error:
            raise ValueError(f"as JSON: {json_error}; as YAML: {yaml_error}") from None


def _make_plan(service: OptimizerService, params: OptimizeParams, *, dry_run: bool, plot: Path | None) -> PlanReport:
    if plot is not None:
        from dsf.pictures import check

        # Check the file before the plan is applied, because an applied plan without its picture would look like a
        # failure.
        check(plot)
    report, plan = service.plan(params, apply=not (dry_run or params.dry_run))
    if plot is not None:
        from dsf.optimizer.plot import draw_plan as draw

        draw(plan, plot)
    return report


def render(report: PlanReport) -> RenderableType:
    """Return a report as a table of workloads and their clusters, followed by a summary, changes and warnings."""
    from rich.console import Group
    from rich.text import Text

    from dsf.cli.output import flatten

    reasons = {entry.workload: entry for entry in report.explanation}
    unplaced = {entry.workload: entry for entry in report.unplaced}
    rows: list[list[str | tuple[str, str]]] = []
    for assignment in report.plan.assignments:
        unplaced_view = unplaced.get(assignment.workload)
        explanation = (
            _format_next_best(reasons.get(assignment.workload))
            if unplaced_view is None
            else f"{unplaced_view.replicas} more: {unplaced_view.message}"
        )
        rows.append(
            [assignment.workload, assignment.cluster, assignment.device, format_number(assignment.score), explanation]
        )
    placed = {assignment.workload for assignment in report.plan.assignments}
    rows += [
        [entry.workload, ("-", "red"), "-", "-", (f"not placed: {entry.message}", "red")]
        for entry in report.unplaced
        if entry.workload not in placed
    ]
    headers = ("WORKLOAD", "CLUSTER", "DEVICE", "SCORE", "WHY NOT THE NEXT BEST")
    state = "in force" if report.applied else "not applied"
    gap = f", at most {report.gap:.2%} below the best" if report.gap else ""
    nothing = "" if report.plan.assignments else ", nothing placed"
    total = format_number(report.objective_value)
    summary = f"{report.status}{gap}{nothing}, sum of scores {total}, plan {report.plan_id} {state}"
    parts: list[RenderableType] = [
        make_table(headers, rows, right_aligned_headers=("SCORE",)),
        Text(""),
        Text(flatten(summary)),
    ]
    changed_objects = [change for change in report.changes if change.change != "unchanged"]
    prefix = "" if report.applied else "would be "
    parts += [
        Text(
            flatten(f"{change.kind} {change.namespace}/{change.name} {prefix}{change.change}"),
            style=_CHANGE_STYLES[change.change],
        )
        for change in changed_objects
    ]
    if not changed_objects and report.plan.assignments:
        parts.append(Text("nothing to change: this plan is in force"))
    notes = [*report.warnings, *(missing_score.message for missing_score in report.missing_scores)]
    parts += [Text(flatten(f"warning: {note}"), style="yellow") for note in notes]
    return Group(*parts)


def _format_next_best(explanation: ExplanationView | None) -> str:
    if explanation is None:
        return ""
    if explanation.next_best is None:
        return explanation.message
    option = explanation.next_best
    return f"{option.cluster} with {option.device} ({format_number(option.score)}): {explanation.message}"


def _render_reset(report: ResetReport) -> RenderableType:
    from rich.text import Text

    if not report.deleted:
        return Text(f"no plan is in force in namespace {report.namespace}")
    prefix = "would be " if report.dry_run else ""
    rows = [[change.kind, change.name, f"{prefix}{change.change}"] for change in report.deleted]
    return make_table(("KIND", "NAME", "CHANGE"), rows)
