"""No test meets a half-made cache: programs are fetched before the first one starts."""

from __future__ import annotations

import pytest

from dsf.errors import ToolError
from tests.support import programs
from tests.support.child import ran
from tests.support.uv import ROOT


@pytest.mark.parametrize("target", ["test", "test-fast", "soak"])
def test_make_fetches_programs_before_tests(target: str) -> None:
    done = ran(["make", "-n", target], cwd=ROOT, check=True)
    fetching, running = (
        done.stdout.index(words)
        for words in ("-m tests.support.programs", "scripts/test" if target == "test" else "-m pytest")
    )
    assert fetching < running


def test_all_are_fetched_whatever_one_of_them_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def find(name: str) -> None:
        asked.append(name)
        if name == "prometheus":
            raise ToolError("prometheus is not on PATH")

    monkeypatch.setattr(programs, "find", find)
    assert list(programs.fetch()) == ["prometheus is not on PATH"]
    assert asked == list(programs.PROGRAMS)
