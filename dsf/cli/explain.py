"""`dsf explain`: runs one cycle and prints each step."""

from __future__ import annotations

from pathlib import Path
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
    format_clock,
    format_number,
    make_table,
    stack_parts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsf.cli.dryrun import ExplainReport, ResultView
    from dsf.fleet.views import InputView, ScoreItem

_STYLES = {"item": "green", "metric": "green", "replaced": "yellow", "refused": "red"}


def _refuse_file(file: str | None) -> None:
    if file is not None:
        raise typer.BadParameter(
            "explain runs a scorer as the hub delivers it to a cluster; for one in a file run `dsf backtest -f "
            f"{flatten(file)} --cluster CLUSTER --since 5m --every 5m`",
            param_hint="--file",
        )


def explain(
    scorer: Annotated[str, typer.Argument(help="Name of the DynamicScorer.")],
    cluster: Annotated[str, typer.Option("--cluster", "-c", envvar="DSF_CLUSTER", help="Name of the managed cluster.")],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="File with the ConfigMap dynamic-scoring-config of that cluster (`kubectl get configmap -o yaml`); "
            "default DSF_AGENT_CONFIG, with DSF_AGENT_KUBE=true the one in the agent's namespace, or that of a running "
            "demo.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", dir_okay=False, help="Write the scoring request to this file, for `dsf scorer check --sample`."
        ),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", hidden=True, expose_value=False, is_eager=True, callback=_refuse_file)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Results shown in the table.")] = 50,
    output: OutputOption = Format.TABLE,
) -> None:
    """Run one cycle and print each step: queries, responses, the scoring request, and the outcome of each result.

    Nothing is published or retried. This machine sends the requests to sources and scoring API; tokens are read from
    DSF_AGENT_SECRETS_DIR, or with DSF_AGENT_KUBE=true from the Secrets in the agent's namespace, and never shown. Exit
    code 1 if the cycle fails.

    On Kubernetes run it in the agent's pod: kubectl -n dynamic-scoring exec deployment/dynamic-scoring-agent --
    dsf explain sample-scorer

    Example: dsf explain sample-scorer --cluster worker01
    """
    from dsf.cli.dryrun import run_explain

    report = run_explain(scorer, cluster, config, save)
    emit(report, output, lambda: _render(report, limit))
    if report.outcome == "error":
        raise typer.Exit(EXIT_FAILURE)


def _make_title(text: str, style: str = "bold") -> list[Cell]:
    return ["", (flatten(text), style)]


def _make_line(label: str, text: object) -> str:
    return f"   {label:<9}{flatten(str(text))}"


def _render(report: ExplainReport, limit: int) -> Renderable:
    parts: list[Cell | Renderable] = [*_yield_steps(report)]
    if report.results:
        parts += [*_make_title("3. Results"), _make_result_table(report.results[:limit])]
        if len(report.results) > limit:
            parts.append(_make_line("and", f"{len(report.results) - limit} more; --limit shows them, -o json has all"))
    if report.withheld_items:
        parts += _make_title("4. Held back by the hub")
        for item in report.withheld_items:
            hold_text = f"{item.name}: {item.value} stays, {item.waiting} is held back{_format_hold_time(item)}"
            parts.append(_make_line("item", hold_text))
        parts.append(_make_line("rule", report.hold.rule if report.hold else "none any more: the next result ends it"))
    if report.trace:
        parts += _make_title(f"trace {report.trace}", "dim")
    used_count = sum(result.fate in ("item", "metric") for result in report.results)
    if report.outcome == "error":
        parts += _make_title(f"error: {report.stage} failed ({report.reason}): {report.message}", "red")
    else:
        if report.message:
            parts += _make_title(f"{report.reason}: {report.message}", "yellow")
        count_text = f"{used_count} of {len(report.results)} results are used"
        parts += _make_title(f"{report.outcome}: {count_text}. Nothing was published.", "green")
    return stack_parts(*parts)


def _format_hold_time(item: ScoreItem) -> str:
    if item.waiting_since is None:
        return ": too near"
    since_text, until_text = format_clock(item.waiting_since), format_clock(item.waiting_until)
    return f" since {since_text}, until {until_text} if it stays as far away"


def _yield_steps(report: ExplainReport) -> Iterator[Cell]:
    """Yield the lines about fetching and scoring."""
    yield (flatten(f"{report.scorer} (score {report.score_name}) on {report.cluster}"), "bold")
    yield from _make_title(f"1. Fetch from source {report.source_type or 'None'}")
    if not report.queries and report.stage != "fetch":
        yield _make_line("nothing", "is queried")
    last_source = ""
    for query in report.queries:
        if query.source != last_source:
            last_source = query.source
            yield _make_line("source", last_source)
        if query.query:
            yield _make_line("query", query.query)
        yield _make_line(query.method, query.url + _format_alias(query.alias_address))
        yield from (_make_line("with", detail) for detail in query.request_details)
        yield _make_line(
            "response", f"{_format_response(query.status, query.seconds, query.bytes)}, {query.series} series"
        )
        yield from (_make_line("warning", warning) for warning in query.warnings)
        if query.head:
            yield _make_line("head", query.head)
    if report.expression:
        yield from _make_title("2. Score")
        yield _make_line("CEL", report.expression)
        for score in report.inputs:
            default = "" if score.default is None else f"; default {score.default:g}"
            text = f"missing: {score.problem}" if score.problem else _format_input_value(score)
            yield _make_line("input", f"{score.name}, the score of {score.scorer}: {text}{default}")
    if report.request:
        yield from _make_title("2. Score")
        yield _make_line("POST", report.request.url + _format_alias(report.request.alias_address))
        yield from (_make_line("with", detail) for detail in report.request.request_details)
        yield _make_line("request", f"{report.request.bytes} bytes, {report.request.series} series")
        yield _make_line("head", report.request.head)
    if report.response:
        yield _make_line(
            "response", _format_response(report.response.status, report.response.seconds, report.response.bytes)
        )
        if report.response.head:
            yield _make_line("head", report.response.head)


def _format_input_value(score: InputView) -> str:
    return f"{score.value:g}" if score.results == 1 else f"mean of {score.results} results, {score.value:g}"


def _format_alias(address: str) -> str:
    """Return the note about the address that replaces a host name which this machine cannot resolve."""
    return f" (here: {address})" if address else ""


def _format_response(status: int | None, seconds: float, size: int) -> str:
    status_text = f"HTTP {status}" if status else "none"
    # Omit the size of objects of the cluster, whose bytes are not counted.
    return f"{status_text} after {seconds * 1000:.0f} ms" + (f", {size} bytes" if size else "")


def _make_result_table(results: list[ResultView]) -> Renderable:
    rows: list[list[Cell]] = [
        [
            (result.fate, _STYLES.get(result.fate, "")),
            result.name,
            "" if result.value is None else format_number(result.value),
            result.note,
            result.result,
        ]
        for result in results
    ]
    return make_table(("FATE", "ITEM", "VALUE", "NOTE", "RESULT"), rows, right_aligned_headers=("VALUE",))
