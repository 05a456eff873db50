"""The framework without the optimiser, whose commands say what they lack; and the optimiser's own wheel beside it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.uv import ROOT, built, uv


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    packages = {"framework": ROOT, "optimizer": ROOT / "packages" / "dsf-optimizer"}
    return {name: built(folder, tmp_path_factory.mktemp(name), "--wheel") for name, folder in packages.items()}


def sources(folder: Path) -> set[str]:
    """All files of a distribution, by their names in its wheel."""
    files = (path for path in (folder / "dsf").rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return {str(path.relative_to(folder)) for path in files}


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_no_file_is_in_both_and_none_is_left_out(wheels: dict[str, Path]) -> None:
    framework, optimizer = contents(wheels["framework"]), contents(wheels["optimizer"])
    assert optimizer == sources(ROOT / "packages" / "dsf-optimizer")
    assert framework == sources(ROOT)
    assert not framework & optimizer
    assert {"dsf/optimizer/example.json", "dsf/optimizer/commands/optimize.py"} <= optimizer


def test_the_framework_alone_says_what_is_missing_and_then_works(wheels: dict[str, Path], tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    uv("venv", "--quiet", "--python", sys.executable, str(environment))
    python = str(environment / "bin" / "python")
    requirements = tmp_path / "requirements.txt"
    wanted = ("--locked", "--no-default-groups", "--no-emit-workspace", "--quiet", "--output-file", str(requirements))
    uv("export", *wanted, "--extra", "optimizer")
    uv("pip", "install", "--quiet", "--no-deps", "--python", python, "-r", str(requirements), str(wheels["framework"]))

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)

    dsf = str(environment / "bin" / "dsf")
    others = {"scorer": "scorer", "demo": "demo", "up": "demo"}
    for command in (
        *("optimize -f params.json", "optimizer", "mcp", "placement best", "scorer check http://x", "demo"),
        "up --manifests .",
    ):
        lacking = run(dsf, *command.split())
        extra = others.get(command.split()[0], "optimizer")
        assert (lacking.returncode, lacking.stdout) == (1, "")
        assert lacking.stderr == (
            f"error: this needs the extra `{extra}`: pip install 'dynamic-scoring-framework[{extra}]'\n"
        )
    assert "optimize" not in run(dsf, "--help").stdout
    uv("pip", "install", "--quiet", "--no-deps", "--python", python, str(wheels["optimizer"]))
    complete = run(python, "-I", "-c", "import dsf.optimizer.main, dsf.optimizer.mcp, dsf.optimizer.solve")
    assert complete.returncode == 0, complete.stderr
    for name in ("optimize", "placement"):
        assert run(dsf, name, "--help").returncode == 0
    found = run(python, "-I", "-c", "from dsf.web.pages import plugins; print(*plugins())")
    assert found.stdout == "placements plans\n", found.stderr
