"""The kubectl plug-in that krew installs: a small program that finds dsf."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.child import ran

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "deploy" / "krew" / "kubectl-dsf"


def run(folder: Path, *programs: str) -> subprocess.CompletedProcess[str]:
    """With these programs on PATH, each of which says how it was called."""
    for name in programs:
        (folder / name).write_text('#!/bin/sh\necho "${0##*/} $*"\n')
        (folder / name).chmod(0o755)
    command = ("/bin/sh", str(PROGRAM), "status", "a scorer")
    return ran(command, env={"PATH": str(folder)})


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        (("dsf", "uv", "pipx"), "dsf status a scorer"),
        (("uv", "pipx"), "uv tool run --quiet --from PACKAGE dsf status a scorer"),
        (("pipx",), "pipx run --quiet --spec PACKAGE dsf status a scorer"),
    ],
)
def test_plugin_uses_the_first_available_program(tmp_path: Path, programs: tuple[str, ...], said: str) -> None:
    version = ran([ROOT / "scripts" / "version"], check=True).stdout.strip()
    done = run(tmp_path, *programs)
    assert done.stdout == f"{said}\n".replace("PACKAGE", f"dynamic-scoring-framework=={version}")
    assert done.returncode == 0


def test_with_nothing_it_says_what_to_install(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "uv tool install dynamic-scoring-framework==" in done.stderr
