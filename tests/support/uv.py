"""Runs uv, for tests of installed packages."""

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
    """Run uv with the packages in its cache, otherwise with the package index."""
    for offline in (["--offline"], []):
        process = subprocess.run(
            [UV, *arguments, *offline], capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
        )
        if process.returncode == 0:
            return
    fail_or_skip(process.stderr)


def fail_or_skip(stderr: str) -> NoReturn:
    """End a test because of uv's error: skip it if there is no package index, but fail with CI=true."""
    if "Failed to fetch" in stderr and os.environ.get("CI", "").lower() != "true":
        pytest.skip(
            next(f"no package index: {line.strip()}" for line in stderr.splitlines() if "Failed to fetch" in line)
        )
    pytest.fail(stderr, pytrace=False)


def build_wheel(package: Path, folder: Path, *options: str) -> Path:
    """Build the wheel of a package in a folder, and return it."""
    uv("build", "--quiet", *options, str(package), "--out-dir", str(folder))
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_venv(folder: Path, *requirements: str | Path) -> Path:
    """Create a virtual environment with these files and packages, and return its folder of programs."""
    uv("venv", "--quiet", "--python", sys.executable, str(folder))
    programs = folder / "bin"
    uv("pip", "install", "--quiet", "--python", str(programs / "python"), *map(str, requirements))
    return programs
