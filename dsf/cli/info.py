"""`dsf version` and `dsf crds`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from dsf.cli.output import Format, Output

if TYPE_CHECKING:
    from rich.console import RenderableType


def version(output: Output = Format.TABLE) -> None:
    """Print the version, and those of Python and Celery.

    Example: dsf version -o json
    """
    import platform
    from importlib import metadata

    from pydantic import BaseModel, Field

    from dsf.cli.output import emit

    class Versions(BaseModel):
        dsf: str = Field(default_factory=lambda: metadata.version("dynamic-scoring-framework"))
        python: str = Field(default_factory=platform.python_version)
        celery: str = Field(default_factory=lambda: metadata.version("celery"))

    versions = Versions()

    def render() -> RenderableType:
        from rich.text import Text

        return Text(f"dsf {versions.dsf} (Python {versions.python}, Celery {versions.celery})")

    emit(versions, output, render)


class ManifestFormat(StrEnum):
    """Output format of Kubernetes objects."""

    YAML = "yaml"
    JSON = "json"


def crds(
    output: Annotated[
        ManifestFormat, typer.Option("--output", "-o", help="yaml or json; kubectl accepts both.")
    ] = ManifestFormat.YAML,
) -> None:
    """Print the CustomResourceDefinitions, generated from the models.

    Example: dsf crds | kubectl apply -f -
    """
    from dsf.api import crd

    if output is ManifestFormat.JSON:
        document = {"apiVersion": "v1", "kind": "List", "items": crd.crds()}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        typer.echo(crd.dump_crds(), nl=False)
