"""`scripts/release`: refusals, its commit and tag, and the stamp that `make test-all` writes for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.child import run_program

ROOT = Path(__file__).resolve().parents[3]
CHANGES = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-12-24\n\n- More.\n"


class Repository:
    """A small repository with a version, a changelog and the scripts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "scripts").mkdir(parents=True)
        for name in ("release", "version", "test"):
            shutil.copy2(ROOT / "scripts" / name, folder / "scripts")
        # Programs that `scripts/test` starts: the control plane exists, and tests pass unless a file exists.
        self.write("scripts/controlplane", "#!/bin/sh\n")
        self.write(".venv/bin/python", "#!/bin/sh\n! [ -e broken ]\n")
        self.write(".gitignore", "/.venv/\n/broken\n")
        self.write("pyproject.toml", '[project]\nname = "x"\nversion = "0.1.0"\n')
        self.write("CHANGELOG.md", CHANGES)
        self.git("init", "--quiet")
        self.git("config", "user.name", "A Releaser")
        self.git("config", "user.email", "releaser@example.com")
        self.commit()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "A change")

    def git(self, *arguments: str) -> str:
        command = ("git", *arguments)
        return run_program(command, cwd=self.folder, check=True).stdout.strip()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return run_program(command, cwd=self.folder, stdin=subprocess.DEVNULL)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    # The user who runs the tests may sign commits and tags.
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    return Repository(tmp_path / "repository")


def test_tested_commit_is_released(repository: Repository) -> None:
    assert repository.run("scripts/test", "all").returncode == 0
    process = repository.run("scripts/release", "0.2.0")
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout == "tagged v0.2.0. To publish it: git push origin HEAD v0.2.0\n"
    assert repository.git("rev-parse", "v0.2.0^{commit}") == repository.git("rev-parse", "HEAD")
    assert repository.git("cat-file", "-t", "v0.2.0") == "tag"
    assert repository.run("scripts/version").stdout == "0.2.0\n"
    message = repository.git("log", "-1", "--format=%B")
    assert message == "Version 0.2.0\n\nSigned-off-by: A Releaser <releaser@example.com>"
    assert repository.git("status", "--porcelain") == ""


def test_version_already_set_needs_no_commit(repository: Repository) -> None:
    repository.write("CHANGELOG.md", CHANGES.replace("0.2.0", "0.1.0"))
    repository.commit()
    head = repository.git("rev-parse", "HEAD")
    assert repository.run("scripts/test", "all").returncode == 0
    assert repository.run("scripts/release", "0.1.0").returncode == 0
    assert repository.git("rev-parse", "HEAD") == repository.git("rev-parse", "v0.1.0^{commit}") == head


@pytest.mark.parametrize(
    ("changelog", "words"),
    [
        (CHANGES.replace("## [0.2.0] - 2026-12-24\n", ""), "has no section of this version"),
        (CHANGES.replace("2026-12-24", "soon"), "`## [0.2.0] - soon` has no date"),
        (CHANGES.replace("2026-12-24", "2026-13-24"), "has no date"),
    ],
)
def test_release_without_a_dated_changelog_section_is_refused(
    repository: Repository, changelog: str, words: str
) -> None:
    repository.write("CHANGELOG.md", changelog)
    repository.commit()
    assert repository.run("scripts/test", "all").returncode == 0
    process = repository.run("scripts/release", "0.2.0")
    assert process.returncode == 1
    assert len(process.stderr.splitlines()) == 1
    assert words in process.stderr
    assert repository.git("tag") == ""


def test_every_problem_is_reported_and_no_file_changes(repository: Repository) -> None:
    repository.git("tag", "v0.2.0")
    repository.write("new.txt", "")
    process = repository.run("scripts/release", "0.2.0")
    assert process.returncode == 1
    problems = process.stderr.splitlines()
    assert len(problems) == 3
    for line, words in zip(
        problems, ("uncommitted changes", "the tag v0.2.0 is there", "`make test-all`"), strict=True
    ):
        assert line.startswith("release: ")
        assert words in line
    assert repository.run("scripts/version").stdout == "0.1.0\n"


@pytest.mark.parametrize("case", ["later", "some", "failed", "uncommitted"])
def test_release_requires_all_tests_on_this_commit(repository: Repository, case: str) -> None:
    if case == "failed":
        repository.write("broken", "")
    if case == "uncommitted":
        repository.write("new.txt", "")
    release = repository.run("scripts/test", "all", *(["tests/unit"] if case == "some" else []))
    assert release.returncode == (1 if case == "failed" else 0)
    if case in {"later", "uncommitted"}:
        repository.write("new.txt", "")
        repository.commit()
    release = repository.run("scripts/release", "0.2.0")
    assert release.returncode == 1
    assert "not all tests have passed on this commit" in release.stderr


@pytest.mark.parametrize("arguments", [(), ("v0.2.0",), ("0.2",), ("0.2.0", "0.3.0")])
def test_release_takes_one_version(repository: Repository, arguments: tuple[str, ...]) -> None:
    process = repository.run("scripts/release", *arguments)
    assert process.returncode == 2
    assert "usage: scripts/release X.Y.Z" in process.stderr
