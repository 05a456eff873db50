"""uv as a command, for tests of what is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = str(ROOT / "scripts" / "uv")


def uv(*arguments: str) -> None:
    """Run uv: with what it has in its cache, else with the package index."""
    for offline in (["--offline"], []):
        process = subprocess.run(
            [UV, *arguments, *offline], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
        )
        if process.returncode == 0:
            return
    failed(process.stderr)


def failed(stderr: str) -> NoReturn:
    """End a test by what uv said: skip it where there is no package index, but not with CI=true."""
    if "Failed to fetch" in stderr and os.environ.get("CI", "").lower() != "true":
        pytest.skip(
            next(f"no package index: {line.strip()}" for line in stderr.splitlines() if "Failed to fetch" in line)
        )
    pytest.fail(stderr, pytrace=False)


def built(package: Path, folder: Path, *options: str) -> Path:
    """Return the wheel of a package, made in a folder."""
    uv("build", "--quiet", *options, str(package), "--out-dir", str(folder))
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment(folder: Path, *requirements: str | Path) -> Path:
    """Return a new virtual environment with these files and packages; its folder of programs."""
    uv("venv", "--quiet", "--python", sys.executable, str(folder))
    programs = folder / "bin"
    uv("pip", "install", "--quiet", "--python", str(programs / "python"), *map(str, requirements))
    return programs
