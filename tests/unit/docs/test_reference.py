"""The reference pages are up to date: scripts/reference-pages writes the same."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from dsf import reasons
from dsf.api.crd import make_crds
from dsf.cli.main import app
from tests.support.child import run_program

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "reference-pages"
PAGES = runpy.run_path(str(SCRIPT))["PAGES"]


def _text(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_reference_page_equals_the_generated_one(name: str) -> None:
    assert _text(name) == PAGES[name](), "run: .venv/bin/python scripts/reference-pages"


def test_every_command_and_option_is_documented() -> None:
    documented_commands = re.findall(r"^### (dsf .*)$", _text("cli.md"), re.MULTILINE)
    root: Any = get_command(app)
    existing_commands = [
        f"dsf {name} {sub}".strip()
        for name, command in root.commands.items()
        for sub in (getattr(command, "commands", None) or [""])
    ]
    assert sorted(documented_commands) == sorted(existing_commands)
    options = {
        word
        for command in root.commands.values()
        for parameter in command.params
        for word in parameter.opts
        if "-" in word
    }
    assert not {word for word in options if f"`{word}`" not in _text("cli.md")}


def test_every_kind_field_and_reason_is_documented() -> None:
    text = _text("crds.md")
    for crd in make_crds():
        (version,) = crd["spec"]["versions"]
        for part in ("spec", "status"):
            fields = version["schema"]["openAPIV3Schema"]["properties"][part].get("properties", {})
            assert not [name for name in fields if f"| `{name}` |" not in text]
    kinds = reasons.DescribedReason.__subclasses__()
    assert len(kinds) > 4
    assert not [
        str(reason)
        for kind in kinds
        for reason in kind
        if f"`{reason}` | {reason.meaning} | {reason.advice} |" not in _text("reasons.md")
    ]


def test_every_endpoint_is_documented() -> None:
    paths = re.findall(r"^### GET (/\S+)$", _text("http-api.md"), re.MULTILINE)
    assert {"/metrics", "/api/v1/pairs", "/plans", "/scorers/{name}"} <= set(paths)


def test_wrong_usage_prints_the_usage() -> None:
    process = run_program([sys.executable, SCRIPT, "nonsense"])
    assert (process.returncode, "usage: " in process.stderr) == (2, True)
