"""Programs are fetched before the first test starts, so tests never see an incomplete cache."""

from __future__ import annotations

import re

import pytest

from dsf.errors import ToolError
from tests.support import programs
from tests.support.child import run_program
from tests.support.uv import ROOT

#: Folders of unit tests.
UNIT = sorted(
    folder for pattern in ("tests/unit", "*/tests/unit", "packages/*/tests/unit") for folder in ROOT.glob(pattern)
)


@pytest.mark.parametrize("target", ["test", "test-fast", "test-kube", "test-browser", "test-all", "soak"])
def test_make_fetches_programs_before_tests(target: str) -> None:
    process = run_program(["make", "-n", target], cwd=ROOT, check=True)
    fetching, running = (
        process.stdout.index(words)
        for words in ("-m tests.support.programs", "-m pytest" if target in ("test-fast", "soak") else "scripts/test")
    )
    assert fetching < running


def test_all_programs_are_fetched_although_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    searched_programs: list[str] = []

    def find(name: str) -> None:
        searched_programs.append(name)
        if name == "prometheus":
            raise ToolError("prometheus is not on PATH")

    monkeypatch.setattr(programs, "find", find)
    assert list(programs.fetch()) == ["prometheus is not on PATH"]
    assert searched_programs == list(programs.PROGRAMS)


def test_fast_tests_fetch_only_programs_of_unit_tests() -> None:
    """Checks programs that files of unit tests search for, and those of the shared Redis."""
    used_programs = {"redis-server"}
    for file in (file for folder in UNIT for file in folder.rglob("test_*.py")):
        used_programs.update(re.findall(r"""programs\.find\(["']([a-z-]+)["']""", file.read_text(encoding="utf-8")))
    command = run_program(["make", "-n", "test-fast"], cwd=ROOT, check=True).stdout
    (fetched,) = re.findall(r"tests\.support\.programs (.*)", command)
    assert set(fetched.split()) == used_programs


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], set(programs.PROGRAMS)), (["curl"], {"curl"}), (["--without", "curl"], set(programs.PROGRAMS) - {"curl"})],
)
def test_command_line_chooses_programs(words: list[str], expected: set[str]) -> None:
    assert set(programs.selected_programs(words)) == expected
