"""The kubectl plug-in that krew installs: a small program that finds dsf."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.child import run_program

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "deploy" / "krew" / "kubectl-dsf"


def run(folder: Path, *programs: str) -> subprocess.CompletedProcess[str]:
    """Run the plug-in with these programs on PATH, each of which prints its call."""
    for name in programs:
        (folder / name).write_text('#!/bin/sh\necho "${0##*/} $*"\n')
        (folder / name).chmod(0o755)
    command = ("/bin/sh", str(PROGRAM), "status", "a scorer")
    return run_program(command, env={"PATH": str(folder)})


@pytest.mark.parametrize(
    ("programs", "output"),
    [
        (("dsf", "uv", "pipx"), "dsf status a scorer"),
        (("uv", "pipx"), "uv tool run --quiet --from PACKAGE dsf status a scorer"),
        (("pipx",), "pipx run --quiet --spec PACKAGE dsf status a scorer"),
    ],
)
def test_plugin_uses_the_first_available_program(tmp_path: Path, programs: tuple[str, ...], output: str) -> None:
    version = run_program([ROOT / "scripts" / "version"], check=True).stdout.strip()
    process = run(tmp_path, *programs)
    assert process.stdout == f"{output}\n".replace("PACKAGE", f"dynamic-scoring-framework=={version}")
    assert process.returncode == 0


def test_plugin_names_the_command_to_install_without_any_program(tmp_path: Path) -> None:
    process = run(tmp_path)
    assert (process.returncode, process.stdout) == (1, "")
    assert len(process.stderr.splitlines()) == 1
    assert "uv tool install dynamic-scoring-framework==" in process.stderr
