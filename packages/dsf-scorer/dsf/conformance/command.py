"""`dsf scorer`: tools for authors of scoring APIs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.group import EXIT_FAILURE, EXIT_USAGE
from dsf.cli.output import Format, OutputOption, emit, escape_control_characters, flatten, make_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dsf.conformance.report import ConformanceReport
    from dsf.conformance.testrun import TestReport

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
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL|FILE",
            help="The configURL, such as http://127.0.0.1:8000/config, or a manifest of scorers with expressions.",
        ),
    ],
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
            help="Recorded series: a scoring request or a response of Prometheus as JSON; default: those of "
            "--prometheus, else generated series with the labels of the query.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    dimension: Annotated[
        str, typer.Option("--dimension", help="The scoreDimensionFormat for item names, such as '${node};${pod}'.")
    ] = "",
    prometheus: Annotated[
        str,
        typer.Option(
            "--prometheus",
            help="URL of a Prometheus server that runs the queries of /config; their series are the samples.",
        ),
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
    output: OutputOption = Format.TABLE,
) -> None:
    """Check a scoring API against the framework's contract, with a reason and a remedy per item.

    A scorer with an expression is checked by its manifest: that the expression compiles, and with --prometheus, that it
    has values for the series of that server.

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
    from dsf.text import shorten_url

    if Path(url).is_file():
        _check_expressions(Path(url), prometheus, output)
        return
    if not is_valid_url(url):
        raise typer.BadParameter(
            f"{shorten_url(url)!r} is neither a file nor a URL such as http://127.0.0.1:8000/config", param_hint="URL"
        )
    if prometheus and not is_valid_url(prometheus):
        raise typer.BadParameter(
            f"{shorten_url(prometheus)!r} is no URL such as http://127.0.0.1:9090", param_hint="--prometheus"
        )
    unknown_points = set(skip or ()) - set(NAMES)
    if unknown_points:
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown_points))}: items are {', '.join(NAMES)}", param_hint="--skip"
        )
    case = Case(
        url=url,
        target=ScoringApiTarget(timeout),
        token=_read_token(token, token_file),
        path=path,
        dimension=dimension,
        prometheus=prometheus,
        method=SourceMethod.POST if post else SourceMethod.GET,
        recorded=samples.load(sample) if sample is not None else None,
    )
    report = run(case, skip or ())
    emit(report, output, lambda: _render(report))
    if not report.conformant:
        raise typer.Exit(EXIT_FAILURE)


def _check_expressions(file: Path, prometheus: str, output: Format) -> None:
    from dsf.conformance.expression import check_manifest

    try:
        report = check_manifest(file, prometheus)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not text"
        raise typer.BadParameter(f"{file}: {reason}", param_hint="URL|FILE") from None
    emit(report, output, lambda: _render(report))
    if not report.conformant:
        raise typer.Exit(EXIT_FAILURE)


@_group.command("test")
def run_files(
    files: Annotated[list[Path], typer.Argument(help="Files with series and expected items.", dir_okay=False)],
    url: Annotated[
        str, typer.Option("--url", help="Ask this scoring API, such as http://127.0.0.1:8000, not the files' scorer.")
    ] = "",
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="File whose first line is the token.", exists=True, dir_okay=False),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", dir_okay=False, help="Write the results to this file, as JUnit's XML.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Timeout of each scoring request in seconds.")
    ] = 30.0,
    output: OutputOption = Format.TABLE,
) -> None:
    """Test a scorer: series in promtool's notation in, items of the AddOnPlacementScore out.

    A file names a scoring API, or a Python scorer (`scorer: module:object`), which is imported and run here. Nothing is
    published. Exit code 1 if a case fails, 2 if a file cannot be used.

    Example: dsf scorer test scorer-test.yaml --junit results.xml
    """
    from dsf.api.urls import is_valid_url
    from dsf.conformance import junit as xml
    from dsf.conformance.testfile import TestFile
    from dsf.conformance.testrun import TestReport, run
    from dsf.errors import ManifestError
    from dsf.text import shorten_url

    if url and not is_valid_url(url):
        raise typer.BadParameter(f"{shorten_url(url)!r} is no URL such as http://127.0.0.1:8000", param_hint="--url")
    token = _read_token(None, token_file)
    try:
        read = [TestFile(file, url) for file in files]
    except ManifestError as error:
        typer.echo(escape_control_characters(str(error)), err=True)
        raise typer.Exit(EXIT_USAGE) from None
    cases = [case for file in read for case in run(file, token, timeout)]
    report = TestReport(passed=not any(case.failures for case in cases), cases=cases)
    if junit is not None:
        try:
            xml.write(junit, cases)
        except OSError as error:
            raise typer.BadParameter(f"cannot be written: {error}", param_hint="--junit") from None
    emit(report, output, lambda: _render_cases(report))
    if not report.passed:
        raise typer.Exit(EXIT_FAILURE)


def add(app: typer.Typer) -> None:
    """Add the group to `dsf`."""
    app.add_typer(_group, name="scorer", rich_help_panel="Look")


def _read_token(token: str | None, file: Path | None) -> str | None:
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


def _render_cases(report: TestReport) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    rows: list[list[str | tuple[str, str]]] = [
        [case.file, case.name, ("fail", "bold red") if case.failures else ("pass", "green"), f"{case.seconds:.2f}s"]
        for case in report.cases
    ]
    failures = [Text(flatten(failure)) for case in report.cases for failure in case.failures]
    failed_cases = sum(bool(case.failures) for case in report.cases)
    end = Text(
        f"{len(report.cases) - failed_cases} passed, {failed_cases} failed",
        style="bold red" if failed_cases else "green",
    )
    return Group(
        make_table(["FILE", "CASE", "", "TIME"], rows, right_aligned_headers=("TIME",)), Text(""), *failures, end
    )


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
    return Group(make_table(["POINT", "", "WHAT WAS SEEN"], rows), Text(""), Text(f"{word}: {counts}", style=style))
