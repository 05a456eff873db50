"""`dsf scorer`: tools for authors of scoring APIs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.group import BAD
from dsf.cli.output import Format, Output, emit, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsf.conformance.report import ConformanceReport

_group = typer.Typer(
    help="Tools for authors of scoring APIs.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


@_group.callback()
def scorer() -> None:
    """Tools for authors of scoring APIs."""


@_group.command()
def check(
    url: Annotated[str, typer.Argument(help="The configURL, such as http://127.0.0.1:8000/config.")],
    token: Annotated[
        str | None,
        typer.Option("--token", help="Token of the scoring path. Other users of this machine can see it here."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="File whose first line is the token.", exists=True, dir_okay=False),
    ] = None,
    path: Annotated[str, typer.Option("--path", help="Scoring path; default: the one in /config.")] = "",
    sample: Annotated[
        Path | None,
        typer.Option(
            "--sample",
            help="Recorded series: a scoring request or an answer of Prometheus as JSON; default: generated series "
            "with the labels of the query.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    dimension: Annotated[
        str, typer.Option("--dimension", help="The scoreDimensionFormat for item names, such as '${node};${pod}'.")
    ] = "",
    prometheus: Annotated[
        str, typer.Option("--prometheus", help="URL of a Prometheus server that runs the queries of /config.")
    ] = "",
    post: Annotated[
        bool, typer.Option("--post", help="Send them by POST, as a source with `method: POST` does.")
    ] = False,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", help="Skip an item, such as determinism; may be repeated.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Timeout of each scoring request in seconds.")
    ] = 30.0,
    output: Output = Format.TABLE,
) -> None:
    """Check a scoring API against the framework's contract, with a reason and a remedy per item.

    This machine sends the requests with the framework's HTTP client. Exit code 1 if an item fails.

    Example: dsf scorer check http://127.0.0.1:8000/config --dimension '${node};${pod}'
    """
    from dsf.api.types import SourceMethod
    from dsf.api.urls import is_valid_url
    from dsf.conformance import samples
    from dsf.conformance.case import Case
    from dsf.conformance.run import NAMES
    from dsf.conformance.run import check as run
    from dsf.conformance.target import ScoringApiTarget

    if not is_valid_url(url):
        raise typer.BadParameter(f"{url!r} is not a URL such as http://127.0.0.1:8000/config", param_hint="URL")
    if prometheus and not is_valid_url(prometheus):
        raise typer.BadParameter(f"{prometheus!r} is no URL such as http://127.0.0.1:9090", param_hint="--prometheus")
    unknown = set(skip or ()) - set(NAMES)
    if unknown:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: items are {', '.join(NAMES)}", param_hint="--skip")
    case = Case(
        url=url,
        target=ScoringApiTarget(timeout),
        token=_token(token, token_file),
        path=path,
        dimension=dimension,
        prometheus=prometheus,
        method=SourceMethod.POST if post else SourceMethod.GET,
        recorded=samples.load(sample) if sample is not None else None,
    )
    report = run(case, skip or ())
    emit(report, output, lambda: _render(report))
    if not report.conformant:
        raise typer.Exit(BAD)


def add(app: typer.Typer) -> None:
    """Add the group to `dsf`."""
    app.add_typer(_group, name="scorer", rich_help_panel="Look")


def _token(token: str | None, file: Path | None) -> str | None:
    if token is not None and file is not None:
        raise typer.BadParameter("give one of --token and --token-file", param_hint="--token")
    if file is not None:
        # More tokens may follow, one per line, during a rotation.
        try:
            lines = file.read_text(encoding="utf-8").split()
        except UnicodeDecodeError:
            raise typer.BadParameter(f"not text: {file}", param_hint="--token-file") from None
        token = lines[0] if lines else ""
    if token == "":
        raise typer.BadParameter("the token is empty", param_hint="--token")
    return token


def _render(report: ConformanceReport) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    rows: list[list[str | tuple[str, str]]] = []
    for point in report.points:
        rows.append([point.point, (point.outcome, _STYLES[point.outcome]), point.message])
        if point.mend:
            rows.append(["", "", (f"-> {point.mend}", "italic")])
    counts = ", ".join(f"{count} {outcome}" for outcome, count in report.counts.items() if count)
    word, style = ("conformant", "green") if report.conformant else ("not conformant", "bold red")
    return Group(table(["POINT", "", "WHAT WAS SEEN"], rows), Text(""), Text(f"{word}: {counts}", style=style))
