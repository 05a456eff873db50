"""docs/changing.md names existing files and covers all conditions, alerts and settings."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from dsf.api import crd
from dsf.api.types import ConditionType, SourceType
from dsf.cli.main import app
from dsf.sources import find_source
from tests.support.child import run_program

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "changing.md").read_text(encoding="utf-8")
#: Pages that scripts write: a command that only they name is not explained.
GENERATED = {"settings.md", "helm-values.md", "cli.md", "crds.md", "http-api.md", "reasons.md"}
#: Conditions that no column of `kubectl get` has, and why.
WITHOUT_COLUMN = {
    ConditionType.Healthy: "the column Health shows what it is made of",
    ConditionType.ConfigSynced: "while it is false, Ready has its reason",
    ConditionType.Scoring: "Ready has its reason",
    ConditionType.Distributed: "the columns Succeeding and Desired show what comes of it",
}


def page(name: str) -> str:
    """Return the text of a page of the documentation."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def named_files() -> list[str]:
    """Return files and folders in code marks."""
    return sorted(set(re.findall(r"`((?:dsf|packages|demo|docs|deploy|scripts|tests)/[\w./-]*)`", PAGE)))


def test_files_are_named() -> None:
    assert len(named_files()) > 30


@pytest.mark.parametrize("name", named_files())
def test_every_named_file_exists(name: str) -> None:
    assert (ROOT / name).exists()


def test_every_change_of_a_newcomer_has_a_row() -> None:
    rows = re.findall(r"^\| ([^|`-][^|]*?) \|", PAGE, re.MULTILINE)
    expected_rows = {
        *("source type", "command of `dsf`", "metric", "setting", "failure reason", "status condition"),
        *("field of a CRD", "backend of the hub", "MCP tool", "alert", "header for a source", "source plug-in"),
    }
    assert expected_rows <= set(rows)


@pytest.mark.parametrize("condition", ConditionType)
def test_every_condition_has_a_printer_column_or_a_reason_for_none(condition: ConditionType) -> None:
    columns = crd.make_crds()[0]["spec"]["versions"][0]["additionalPrinterColumns"]
    has_column = any(f'@.type=="{condition}"' in column["jsonPath"] for column in columns)
    assert has_column is not (condition in WITHOUT_COLUMN), f"{condition}: a column in dsf/api/crd.py, or a reason here"


@pytest.mark.parametrize("condition", ConditionType)
def test_every_condition_is_on_a_page(condition: ConditionType) -> None:
    pages = [file for file in (ROOT / "docs").glob("*.md") if f"`{condition}" in file.read_text(encoding="utf-8")]
    assert pages, f"no page of docs/ explains the condition {condition}"


@pytest.mark.parametrize("source", SourceType)
def test_every_source_type_is_implemented_and_documented(source: SourceType) -> None:
    assert callable(find_source(source))
    assert f"`{source}`" in page("sources.md")


@pytest.mark.parametrize("command", sorted(get_command(app).commands))  # type: ignore[attr-defined]
def test_every_command_is_on_a_page(command: str) -> None:
    files = [file for file in (ROOT / "docs").glob("*.md") if file.name not in GENERATED]
    assert any(re.search(rf"\bdsf {command}\b", file.read_text(encoding="utf-8")) for file in files)


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_generated_pages_exist(name: str) -> None:
    assert (ROOT / "docs" / name).exists()


def alerts() -> list[str]:
    """Return the names of all alerts."""
    template = (ROOT / "deploy" / "helm" / "templates" / "monitoring.yaml").read_text(encoding="utf-8")
    return re.findall(r"- alert: (\w+)", template)


@pytest.mark.parametrize("alert", alerts())
def test_every_alert_is_on_its_page(alert: str) -> None:
    assert alert in page("prometheus.md")


#: Files that a person edits for a new setting with a value of the chart, in addition to the module that reads it and
#: its test.
SETTING_FILES = {"dsf/settings.py", "deploy/helm/values.yaml", "CHANGELOG.md"}
#: Files that scripts write for it.
SETTING_GENERATED = {
    *("deploy/helm/templates/_settings.tpl", "deploy/helm/values.schema.json"),
    *("docs/settings.md", "docs/helm-values.md", "deploy/helm/README.md"),
}


def files(root: Path) -> dict[str, bytes]:
    """Return the path below `root` -> content of each file."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_new_setting_needs_five_files(tmp_path: Path) -> None:
    """Add a setting to a copy as the page describes; scripts write all but the code that reads it and its test."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| setting |")]
    assert all(f"`{name}`" in row for name in SETTING_FILES | SETTING_GENERATED)
    assert len(SETTING_FILES) + 2 <= 5
    for name in ("dsf", "scripts", "deploy/helm"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()
    for name in ("settings.md", "helm-values.md"):
        shutil.copy(ROOT / "docs" / name, tmp_path / "docs")
    before = files(tmp_path)
    settings, values = tmp_path / "dsf" / "settings.py", tmp_path / "deploy" / "helm" / "values.yaml"
    place = "    beat_lock_timeout: float = Field("
    assert settings.read_text().count(place) == 1
    field = '    beat_pause: int = Field(default=0, ge=0, le=60, description="Seconds before each tick.")\n'
    settings.write_text(settings.read_text().replace(place, field + place))
    place = "  # -- Additional environment variables of beat.\n"
    assert values.read_text().count(place) == 1
    value = "  # -- Seconds before each tick.\n  # @setting beat_pause\n  pause: 0\n"
    values.write_text(values.read_text().replace(place, value + place))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    for script in ("chart-settings", "settings-table", "helm-values-table"):
        command = [sys.executable, "-P", tmp_path / "scripts" / script]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=300)
    after = files(tmp_path)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"dsf/settings.py", "deploy/helm/values.yaml"} | SETTING_GENERATED
    schema = json.loads(after["deploy/helm/values.schema.json"])
    rule = schema["properties"]["beat"]["properties"]["pause"]
    assert rule == {"type": "integer", "minimum": 0, "maximum": 60}
    template = after["deploy/helm/templates/_settings.tpl"].decode()
    assert '{{- include "dsf.setting" (list "DSF_BEAT_PAUSE" (.Values.beat).pause) }}' in template
    assert "| `DSF_BEAT_PAUSE` | `0` | yes | Seconds before each tick. |" in after["docs/settings.md"].decode()
    assert "| `beat.pause` | `0` | Seconds before each tick. |" in after["docs/helm-values.md"].decode()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("beat_pause", "beat.queueLimit: no setting beat_pause"),
        ("queue_limit bat", "beat.queueLimit: no component bat"),
    ],
)
def test_wrong_line_of_a_setting_is_named(tmp_path: Path, line: str, says: str) -> None:
    for name in ("chart-settings", "helm-values-table"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    (tmp_path / "deploy" / "helm").mkdir(parents=True)
    text = (ROOT / "deploy" / "helm" / "values.yaml").read_text()
    wrong = text.replace("# @setting queue_limit beat web optimizer", f"# @setting {line}")
    assert wrong != text
    (tmp_path / "deploy" / "helm" / "values.yaml").write_text(wrong)
    command = [sys.executable, tmp_path / "scripts" / "chart-settings"]
    process = run_program(command)
    assert process.returncode == 1
    assert says in process.stderr
