"""`dsf explain`: run one cycle and print each step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.group import BAD
from dsf.cli.output import Cell, Format, Output, Renderable, clock, emit, flat, number, stacked, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsf.cli.dryrun import ExplainReport, ResultView
    from dsf.fleet.views import InputView, ScoreItem

_STYLES = {"item": "green", "metric": "green", "replaced": "yellow", "refused": "red"}


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
    limit: Annotated[int, typer.Option("--limit", min=1, help="Results shown in the table.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    """Run one cycle and print each step: queries, answers, the scoring request, and the outcome of each result.

    Nothing is published or retried. This machine sends the requests to sources and scoring API; tokens are read from
    DSF_AGENT_SECRETS_DIR, or with DSF_AGENT_KUBE=true from the Secrets in the agent's namespace, and never shown. Exit
    code 1 if the cycle fails.

    On Kubernetes run it in the agent's pod: kubectl -n dynamic-scoring exec deployment/dynamic-scoring-agent --
    dsf explain sample-scorer

    Example: dsf explain sample-scorer --cluster worker01
    """
    from dsf.cli.dryrun import explained

    report = explained(scorer, cluster, config, save)
    emit(report, output, lambda: _render(report, limit))
    if report.outcome == "error":
        raise typer.Exit(BAD)


def _title(text: str, style: str = "bold") -> list[Cell]:
    return ["", (flat(text), style)]


def _line(label: str, text: object) -> str:
    return f"   {label:<9}{flat(str(text))}"


def _render(report: ExplainReport, limit: int) -> Renderable:
    parts: list[Cell | Renderable] = [*_steps(report)]
    if report.results:
        parts += [*_title("3. Results"), _result_table(report.results[:limit])]
        if len(report.results) > limit:
            parts.append(_line("and", f"{len(report.results) - limit} more; --limit shows them, -o json has all"))
    if report.held:
        parts += _title("4. Held back by the hub")
        for item in report.held:
            hold_text = f"{item.name}: {item.value} stays, {item.waiting} is held back{_until(item)}"
            parts.append(_line("item", hold_text))
        parts.append(_line("rule", report.hold.rule if report.hold else "none any more: the next result ends it"))
    if report.trace:
        parts += _title(f"trace {report.trace}", "dim")
    good = sum(result.fate in ("item", "metric") for result in report.results)
    if report.outcome == "error":
        parts += _title(f"error: {report.stage} failed ({report.reason}): {report.message}", "red")
    else:
        if report.message:
            parts += _title(f"{report.reason}: {report.message}", "yellow")
        count_text = f"{good} of {len(report.results)} results are used"
        parts += _title(f"{report.outcome}: {count_text}. Nothing was published.", "green")
    return stacked(*parts)


def _until(item: ScoreItem) -> str:
    if item.waiting_since is None:
        return ": too near"
    return f" since {clock(item.waiting_since)}, until {clock(item.waiting_until)} if it stays as far away"


def _steps(report: ExplainReport) -> Iterator[Cell]:
    yield (flat(f"{report.scorer} (score {report.score_name}) on {report.cluster}"), "bold")
    yield from _title(f"1. Fetch from source {report.source_type or 'None'}")
    if not report.queries and report.stage != "fetch":
        yield _line("nothing", "is queried")
    last_source = ""
    for query in report.queries:
        if query.source != last_source:
            last_source = query.source
            yield _line("source", last_source)
        if query.query:
            yield _line("query", query.query)
        yield _line(query.method, query.url + _here(query.here))
        yield from (_line("with", detail) for detail in query.sent)
        yield _line("answer", f"{_answer(query.status, query.seconds, query.bytes)}, {query.series} series")
        yield from (_line("warning", warning) for warning in query.warnings)
        if query.head:
            yield _line("head", query.head)
    if report.expression:
        yield from _title("2. Score")
        yield _line("CEL", report.expression)
        for score in report.inputs:
            default = "" if score.default is None else f"; default {score.default:g}"
            text = f"missing: {score.problem}" if score.problem else _input_value(score)
            yield _line("input", f"{score.name}, the score of {score.scorer}: {text}{default}")
    if report.request:
        yield from _title("2. Score")
        yield _line("POST", report.request.url + _here(report.request.here))
        yield from (_line("with", detail) for detail in report.request.sent)
        yield _line("request", f"{report.request.bytes} bytes, {report.request.series} series")
        yield _line("head", report.request.head)
    if report.response:
        yield _line("answer", _answer(report.response.status, report.response.seconds, report.response.bytes))
        if report.response.head:
            yield _line("head", report.response.head)


def _input_value(score: InputView) -> str:
    return f"{score.value:g}" if score.results == 1 else f"mean of {score.results} results, {score.value:g}"


def _here(address: str) -> str:
    """Where a cluster's name leads to on this machine, which cannot resolve it."""
    return f" (here: {address})" if address else ""


def _answer(status: int | None, seconds: float, size: int) -> str:
    what = f"HTTP {status}" if status else "none"
    # Objects of the cluster are not counted in bytes.
    return f"{what} after {seconds * 1000:.0f} ms" + (f", {size} bytes" if size else "")


def _result_table(results: list[ResultView]) -> Renderable:
    rows: list[list[Cell]] = [
        [
            (result.fate, _STYLES.get(result.fate, "")),
            result.name,
            "" if result.value is None else number(result.value),
            result.note,
            result.result,
        ]
        for result in results
    ]
    return table(("FATE", "ITEM", "VALUE", "NOTE", "RESULT"), rows, right=("VALUE",))
