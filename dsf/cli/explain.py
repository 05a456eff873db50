"""`dsf explain`: run one cycle and print each step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.group import BAD
from dsf.cli.output import Cell, Format, Output, Renderable, clock, emit, flat, number, stacked, table

if TYPE_CHECKING:
    from dsf.cli.explaining import ExplainReport, ResultView
    from dsf.fleet.views import ScoreItem

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
    from dsf.cli.explaining import explained

    report = explained(scorer, cluster, config, save)
    emit(report, output, lambda: _render(report, limit))
    if report.outcome == "error":
        raise typer.Exit(BAD)


class _Page:
    """Lines of text; each text of an external service is on one line."""

    def __init__(self) -> None:
        self.parts: list[Cell | Renderable] = []

    def title(self, text: str) -> None:
        self.parts += ["", (flat(text), "bold")]

    def line(self, label: str, text: object) -> None:
        self.parts.append(f"   {label:<9}{flat(str(text))}")

    def end(self, text: str, style: str) -> None:
        self.parts += ["", (flat(text), style)]


def _render(report: ExplainReport, limit: int) -> Renderable:
    page = _Page()
    _steps(page, report)
    if report.results:
        page.title("3. Results")
        page.parts.append(_result_table(report.results[:limit]))
        if len(report.results) > limit:
            page.line("and", f"{len(report.results) - limit} more; --limit shows them, -o json has all")
    if report.held:
        page.title("4. Held back by the hub")
        for item in report.held:
            page.line("item", f"{item.name}: {item.value} stays, {item.waiting} is held back{_until(item)}")
        page.line("rule", report.hold.rule if report.hold else "none any more: the next result ends it")
    if report.trace:
        page.end(f"trace {report.trace}", "dim")
    good = sum(result.fate in ("item", "metric") for result in report.results)
    if report.outcome == "error":
        page.end(f"error: {report.stage} failed ({report.reason}): {report.message}", "red")
    else:
        if report.message:
            page.end(f"{report.reason}: {report.message}", "yellow")
        page.end(f"{report.outcome}: {good} of {len(report.results)} results are used. Nothing was published.", "green")
    return stacked(*page.parts[1:])


def _until(item: ScoreItem) -> str:
    if item.waiting_since is None:
        return ": too near"
    return f" since {clock(item.waiting_since)}, until {clock(item.waiting_until)} if it stays as far away"


def _steps(page: _Page, report: ExplainReport) -> None:
    page.title(f"{report.scorer} (score {report.score_name}) on {report.cluster}")
    page.title(f"1. Fetch from source {report.source_type or 'None'}")
    if not report.queries and report.stage != "fetch":
        page.line("nothing", "is queried")
    shown = ""
    for query in report.queries:
        if query.source != shown:
            shown = query.source
            page.line("source", shown)
        if query.query:
            page.line("query", query.query)
        page.line(query.method, query.url + _here(query.here))
        for sent in query.sent:
            page.line("with", sent)
        page.line("answer", f"{_answer(query.status, query.seconds, query.bytes)}, {query.series} series")
        for warning in query.warnings:
            page.line("warning", warning)
        if query.head:
            page.line("head", query.head)
    if report.request:
        page.title("2. Score")
        page.line("POST", report.request.url + _here(report.request.here))
        for sent in report.request.sent:
            page.line("with", sent)
        page.line("request", f"{report.request.bytes} bytes, {report.request.series} series")
        page.line("head", report.request.head)
    if report.response:
        page.line("answer", _answer(report.response.status, report.response.seconds, report.response.bytes))
        if report.response.head:
            page.line("head", report.response.head)


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
