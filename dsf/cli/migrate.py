"""`dsf migrate`: reports which parts of an upstream installation would stop or change with this project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.group import EXIT_FAILURE, EXIT_USAGE, fail
from dsf.cli.output import Format, OutputOption, Renderable, emit, flatten, stack_parts

if TYPE_CHECKING:
    from dsf.cli.migrationcheck import Installation, MigrationReport

_STYLES = {"stops": "red", "change": "yellow", "note": ""}


def migrate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Manifests of upstream, as of kubectl get -o yaml, and the values file for this chart."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check, and change nothing; the only thing there is.")] = False,
    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", help="Also read the objects of a running upstream hub.")
    ] = None,
    context: Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of the hub; default: of the values, else upstream's.")
    ] = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Check what of an upstream installation would stop here: scorers, masks, tokens, old scores, chart values.

    Nothing is changed. Exit code 1 if anything would stop.

    Example: dsf migrate --check scorers.yaml values.yaml
    """
    from dsf.cli.migrationcheck import Installation
    from dsf.cli.migrationcheck import check as check_installation
    from dsf.errors import ManifestError

    if not check or not (files or kubeconfig):
        fail("give --check, and manifests or --kubeconfig: `dsf migrate --check scorers.yaml`", EXIT_USAGE)
    installation = Installation()
    try:
        for file in files or ():
            _read_file(file, installation)
        if kubeconfig is not None:
            _read_hub(kubeconfig, context, installation)
        report = check_installation(installation, namespace)
    except ManifestError as error:
        fail(str(error), EXIT_USAGE)
    emit(report, output, lambda: _render(report))
    if report.stops:
        raise typer.Exit(EXIT_FAILURE)


def _read_file(file: Path, installation: Installation) -> None:
    """Add the documents of a file to the installation. Raises ManifestError; its message names the file."""
    import re

    from dsf.api import kubeyaml
    from dsf.errors import ManifestError

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{file}: cannot be read: {error}") from None
    # `kubeyaml.load` parses one document. The text after `---` on a line belongs to the document that begins there.
    for document_text in re.split(r"(?m)^---(?=\s|$)", text):
        try:
            document = kubeyaml.load(document_text)
        except kubeyaml.YamlError as error:
            raise ManifestError(f"{file}: {error}") from None
        if document is not None:
            installation.add(document, str(file))


def _read_hub(kubeconfig: Path, context: str | None, installation: Installation) -> None:
    """Add the objects of a running hub to the installation.

    Raises SettingsError if the kubeconfig cannot be used, and BackendError if the objects cannot be read.
    """
    from contextlib import closing

    from dsf.kube.lists import list_objects
    from dsf.kube.resources import ADDON_PLACEMENT_SCORES, DYNAMIC_SCORERS, DYNAMIC_SCORING_CONFIGS
    from dsf.kube.session import Session

    with closing(Session.load(kubeconfig, context)) as session:
        for resource in (DYNAMIC_SCORERS, DYNAMIC_SCORING_CONFIGS, ADDON_PLACEMENT_SCORES):
            for item in list_objects(session, resource):
                # Add version and kind, because the items of a list lack them.
                document = {"apiVersion": resource.api_version, "kind": resource.kind, **item}
                installation.add(document, session.host)


def _render(report: MigrationReport) -> Renderable:
    lines: list[tuple[str, str]] = []
    for finding in report.findings:
        lines.append(
            (f"{finding.severity}: {flatten(finding.object)}: {flatten(finding.message)}", _STYLES[finding.severity])
        )
        lines.append((f"    {flatten(finding.remedy)}", ""))
    stop_count = sum(finding.severity == "stops" for finding in report.findings)
    summary = "nothing would stop"
    if stop_count:
        summary = "1 finding stops something" if stop_count == 1 else f"{stop_count} findings stop something"
    return stack_parts(*lines, f"{report.scorers} DynamicScorers checked: {summary}")
