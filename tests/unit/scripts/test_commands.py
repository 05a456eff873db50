"""The commands that people and CI type: Makefile, .ci/run, scripts/uv, the layers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.child import run_program

ROOT = Path(__file__).resolve().parents[3]
TARGETS = [
    "help",
    "setup",
    "demo",
    "test",
    "test-kube",
    "test-browser",
    "test-all",
    "test-fast",
    "pythons",
    "node",
    "controlplane",
    "soak",
    "mistakes",
    "lint",
    "compiled",
    "newest",
    "oldest",
    "types",
    "bench",
    "bench-fleet",
    "format",
    "generated",
    "dist",
    "image",
    "deploy",
    "undeploy",
    "docs",
    "pictures",
    "clean",
]


def test_make_lists_its_targets() -> None:
    process = run_program(["make", "-C", ROOT], check=True)
    assert re.findall(r"^  make ([a-z-]+) ", process.stdout, re.MULTILINE) == TARGETS


def test_every_target_that_is_no_file_is_phony() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    assert phony[1].split() == TARGETS


def test_ci_runs_what_people_run() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = re.findall(r"^(?!#).*?\bmake (?:-\S+ )*([a-z -]+)", script.read_text(), re.MULTILINE)
    assert list(dict.fromkeys(" ".join(commands).split())) == [
        *("types", "lint", "compiled", "test", "controlplane", "test-all", "mistakes", "node")
    ]


@pytest.mark.parametrize(
    "name",
    [
        "scripts/uv",
        "scripts/test",
        "scripts/actionlint",
        "scripts/deploy",
        "samples/sample-scorer/test_scorer.sh",
        ".ci/run",
    ],
)
def test_scripts_can_be_read_by_their_shell(name: str) -> None:
    script = ROOT / name
    shell = script.read_text().splitlines()[0].removeprefix("#!").split()
    subprocess.run([*shell, "-n", script], check=True, timeout=300)


def test_api_server_is_built_at_low_priority_beside_tests(tmp_path: Path) -> None:
    programs = {
        "scripts/test": (ROOT / "scripts" / "test").read_text(),
        "scripts/controlplane": "#!/bin/sh\nnice >built\n",
        ".venv/bin/python": "#!/bin/sh\nnice >tested\n",
    }
    for name, text in programs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    process = run_program([tmp_path / "scripts" / "test", "all"], stdin=subprocess.DEVNULL)
    assert process.returncode == 0, process.stderr
    assert int((tmp_path / "built").read_text()) == 19
    assert int((tmp_path / "tested").read_text()) == os.nice(0)


def test_scripts_with_a_shebang_are_executable() -> None:
    folders = (".ci", "scripts", "samples", "deploy", "tests")
    scripts = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    scripts = [path for path in scripts if path.read_bytes()[:2] == b"#!"]
    assert ROOT / "scripts" / "test" in scripts
    assert [str(path) for path in scripts if not os.access(path, os.X_OK)] == []


def test_suitable_uv_on_path_is_used(tmp_path: Path) -> None:
    process = _uv(tmp_path, 'case $1 in --version) echo "uv 0.99.1 (x)";; *) echo "mine: $*";; esac')
    assert process.stdout == "mine: sync --locked\n"
    assert process.stderr == ""


def test_outdated_uv_is_not_used(tmp_path: Path) -> None:
    # A stand-in replaces the copy in the cache, so that no program is downloaded.
    version = re.search(r"^VERSION=(.*)$", (ROOT / "scripts" / "uv").read_text(), re.MULTILINE)
    assert version is not None
    cached = tmp_path / "cache" / "dsf" / f"uv-{version[1]}" / "bin" / "uv"
    cached.parent.mkdir(parents=True)
    cached.write_text('#!/bin/sh\necho "cached: $*"\n')
    cached.chmod(0o755)
    process = _uv(tmp_path, 'echo "uv 0.8.22"')
    assert process.stdout == "cached: sync --locked\n"


def test_missing_python_is_reported(tmp_path: Path) -> None:
    process = _uv(tmp_path, "exit 1", commands=("sh", "cut", "sort", "head", "mkdir", "mktemp", "rm"))
    assert process.returncode == 1
    assert "python3 is not on PATH; install Python 3.11 or newer" in process.stderr


def _uv(folder: Path, code: str, commands: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run scripts/uv with a script of this code as `uv`; `commands` are the only other programs, if given."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "uv").write_text(f"#!/bin/sh\n{code}\n")
    (bin_folder / "uv").chmod(0o755)
    for command in commands:
        program = shutil.which(command)
        assert program is not None
        (bin_folder / command).symlink_to(program)
    path = str(bin_folder) if commands else f"{bin_folder}:{os.environ['PATH']}"
    return run_program(
        ["/bin/sh", ROOT / "scripts" / "uv", "sync", "--locked"],
        env={"PATH": path, "XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)},
    )
