"""docs/changing.md names files that exist, and nothing of what it speaks of was forgotten."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from dsf.api import crd
from dsf.api.types import ConditionType, SourceType
from dsf.cli.main import app
from dsf.sources import source_of

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "changing.md").read_text(encoding="utf-8")
#: Pages that scripts write: a command that only they name is explained nowhere.
GENERATED = {"settings.md", "helm-values.md", "cli.md", "crds.md", "http-api.md", "reasons.md"}
#: Conditions that no column of `kubectl get` has, and why.
WITHOUT_COLUMN = {
    ConditionType.Healthy: "the column Health shows what it is made of",
    ConditionType.ConfigSynced: "while it is false, Scoring has its reason",
    ConditionType.Distributed: "the columns Succeeding and Desired show what comes of it",
}


def page(name: str) -> str:
    """A page of the documentation."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def named() -> list[str]:
    """Files and folders in code marks."""
    return sorted(set(re.findall(r"`((?:dsf|packages|docs|deploy|scripts|tests)/[\w./-]*)`", PAGE)))


def test_files_are_named() -> None:
    assert len(named()) > 30


@pytest.mark.parametrize("name", named())
def test_every_named_file_exists(name: str) -> None:
    assert (ROOT / name).exists()


def test_every_change_of_a_newcomer_has_a_row() -> None:
    rows = re.findall(r"^\| ([^|`-][^|]*?) \|", PAGE, re.MULTILINE)
    wanted = {
        *("source type", "command of `dsf`", "metric", "setting", "failure reason", "status condition"),
        *("field of a CRD", "backend of the hub", "MCP tool", "alert", "header for a source", "source plug-in"),
    }
    assert wanted <= set(rows)


@pytest.mark.parametrize("condition", ConditionType)
def test_every_condition_has_a_printer_column_or_a_reason_for_none(condition: ConditionType) -> None:
    columns = crd.crds()[0]["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = any(f'@.type=="{condition}"' in column["jsonPath"] for column in columns)
    assert shown is not (condition in WITHOUT_COLUMN), f"{condition}: a column in dsf/api/crd.py, or a reason here"


@pytest.mark.parametrize("condition", ConditionType)
def test_every_condition_is_on_a_page(condition: ConditionType) -> None:
    pages = [file for file in (ROOT / "docs").glob("*.md") if f"`{condition}" in file.read_text(encoding="utf-8")]
    assert pages, f"no page of docs/ explains the condition {condition}"


@pytest.mark.parametrize("source", SourceType)
def test_every_source_type_can_be_asked_and_is_on_its_page(source: SourceType) -> None:
    assert callable(source_of(source))
    assert f"`{source}`" in page("sources.md")


@pytest.mark.parametrize("command", sorted(get_command(app).commands))  # type: ignore[attr-defined]
def test_every_command_is_on_a_page(command: str) -> None:
    files = [file for file in (ROOT / "docs").glob("*.md") if file.name not in GENERATED]
    assert any(re.search(rf"\bdsf {command}\b", file.read_text(encoding="utf-8")) for file in files)


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_generated_pages_exist(name: str) -> None:
    assert (ROOT / "docs" / name).exists()


def alerts() -> list[str]:
    """Names of all alerts."""
    template = (ROOT / "deploy" / "helm" / "templates" / "monitoring.yaml").read_text(encoding="utf-8")
    return re.findall(r"- alert: (\w+)", template)


@pytest.mark.parametrize("alert", alerts())
def test_every_alert_is_on_its_page(alert: str) -> None:
    assert alert in page("prometheus.md")
