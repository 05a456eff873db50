"""A single machine of the hub has a wrong clock: scores go on, and that machine is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.fleet import Fleet, scores
from tests.faults.movedclock import COMPILER, MovedClock


class WrongFleet(Fleet):
    """A fleet of which one process has a wrong clock."""

    def __init__(self, folder: Path, process: str, clock: MovedClock) -> None:
        # As a fresh process, because the library is loaded at its start.
        altered = {} if process == "redis" else {process: ()}
        super().__init__(folder, altered=altered)
        self._process = process
        self._clock = clock

    def start(self) -> None:
        """Start everything."""
        if self._process == "redis":
            with pytest.MonkeyPatch.context() as patch:
                for name, value in self._clock.environment.items():
                    patch.setenv(name, value)
                self.redis_server.start()
            self.redis_server.start = lambda: self.redis_server  # type: ignore[method-assign]
        super().start()

    def environment(self, name: str) -> dict[str, str]:
        """Return all variables of one process."""
        return super().environment(name) | (self._clock.environment if name == self._process else {})


@pytest.fixture
def clock(tmp_path: Path) -> MovedClock:
    if COMPILER is None:
        pytest.skip("needs a C compiler (cc)")
    return MovedClock(tmp_path)


CASES = [
    ("redis", 60, "the clock of the machine of Redis is 60 s ahead of the clocks of "),
    ("redis", -600, "the clock of the machine of Redis is 600 s behind the clocks of "),
    ("beat", 60, "the clock of beat on "),
    ("results", -60, "the clock of results on "),
    ("hub", 600, "the clock of controller on "),
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}{case[1]:+}")
def case(request: pytest.FixtureRequest) -> tuple[str, int, str]:
    wrong_clock: tuple[str, int, str] = request.param
    return wrong_clock


@pytest.fixture
def fleet(tmp_path: Path, clock: MovedClock, case: tuple[str, int, str]) -> Iterator[WrongFleet]:
    process, seconds, _ = case
    clock.ahead(seconds)
    stack = WrongFleet(tmp_path / "stack", process, clock)
    stack.scorer("sample", scores(10))
    with stack:
        yield stack


def test_machine_with_a_wrong_clock_is_named_and_scores_go_on(fleet: WrongFleet, case: tuple[str, int, str]) -> None:
    assert "LD_PRELOAD" not in os.environ
    fleet.wait_success("sample", cycles=3)
    fleet.until(lambda: fleet.items("sample") == {"n1": 10}, "the object")
    assert fleet.state("sample").failing == 0

    def problem_messages() -> str:
        return " ".join(problem["message"] for problem in fleet.data("status")["problems"])

    fleet.until(lambda: case[2] in problem_messages(), f"{case[2]}...; it says {problem_messages()}", timeout=30)
    assert "the clock of cluster" not in problem_messages()
