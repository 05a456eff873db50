"""All files of a release, built once for the tests of this folder, which run in one process.

The files are from a dry run of a later version, from the last commit of a repository with the content of this
checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.child import run_program
from tests.support.uv import ROOT, fail_or_skip

VERSION = "98.76.54"
#: The chart of that version.
CHART_VERSION = "99.76.54"


@dataclass(frozen=True)
class DryRun:
    """A repository after a dry run, and the standard error of the dry run."""

    folder: Path
    stderr: str


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Return a command that has to succeed, in a folder."""
    process = run_program(command, cwd=folder)
    assert process.returncode == 0, process.stderr
    return process


@pytest.fixture(scope="session")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> DryRun:
    """Beside a change that is not committed."""
    folder = tmp_path_factory.mktemp("release") / "repository"
    tracked_files = run(ROOT, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout
    for name in tracked_files.strip("\0").split("\0"):
        # git also lists a file whose removal is not committed.
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    run(folder, "git", "init", "--quiet")
    run(folder, "git", "add", "--all")
    # Independent of the user's settings for signatures and hooks.
    identity = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
    run(folder, "git", *identity, "commit", "--quiet", "--no-verify", "--message", "all")
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "pyproject.toml").write_text("not committed")
    process = run_program([folder / "scripts" / "release", VERSION, "--dry-run"], cwd=folder)
    if process.returncode:
        fail_or_skip(process.stderr)
    return DryRun(folder, process.stderr)


@pytest.fixture(scope="session")
def dist(dry_run: DryRun) -> Path:
    """The folder with the files."""
    return dry_run.folder / "dist"


@pytest.fixture(scope="session")
def sources(dry_run: DryRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder from which they were built."""
    folder = tmp_path_factory.mktemp("release") / "sources"
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    run(dry_run.folder, "git", "archive", "--output", str(archive), "HEAD")
    shutil.unpack_archive(archive, folder, filter="tar")
    run(folder, "scripts/version", VERSION)
    return folder


def wheel(dist: Path, name: str) -> Path:
    """Return the wheel of `dynamic-scoring-<name>`."""
    (wheel_path,) = dist.glob(f"dynamic_scoring_{name}-*.whl")
    return wheel_path
