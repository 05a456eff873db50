"""The solver's process: its responses, and the handling of missing ones."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest

from dsf.errors import ManifestError
from dsf.optimizer.errors import SolverError
from dsf.optimizer.model import PlanInput, Preference, SearchLimits
from dsf.optimizer.solve import solve
from dsf.optimizer.solver import SolverProcess
from tests.support.planproblems import make_problem
from tests.support.wait import wait_for

from ...unit.optimizer.test_solve import cluster, workload


@pytest.fixture(scope="module")
def process() -> Iterator[SolverProcess]:
    """A solver process that recovers from being killed or stopped by a test."""
    solver_process = SolverProcess(patience=0.2, grace=30)
    yield solver_process
    solver_process.close()


def pid_of(process: SolverProcess) -> int:
    assert process._process is not None
    assert process._process.pid is not None
    return process._process.pid


def test_solver_process_returns_the_same_as_solve(solver: SolverProcess) -> None:
    problem = make_problem(10, 5, 3)
    first, second = (solver.solve(problem, SearchLimits(time_limit=20)) for _ in range(2))
    assert first == second == solve(problem, SearchLimits(time_limit=20))


def test_solver_process_raises_the_errors_of_solve(solver: SolverProcess) -> None:
    problem = PlanInput((workload("a"),), (cluster("c1", {"all": 1}, {"a;all": 10**9}),), (Preference("s"),))
    with pytest.raises(ManifestError, match="is not a valid score"):
        solver.solve(problem, SearchLimits())
    assert solver.solve(make_problem(2, 2, 2), SearchLimits()).status


def test_solver_writes_nothing_to_standard_output(solver: SolverProcess, capfd: pytest.CaptureFixture[str]) -> None:
    solver.solve(make_problem(60, 20, 3), SearchLimits(time_limit=0.05))
    assert capfd.readouterr().out == ""


class Deadly:
    """The solver's connection; as soon as the solver has a problem it is killed."""

    def __init__(self, connection: Connection, pid: int) -> None:
        self._connection = connection
        self._pid = pid

    def send(self, problem: object) -> None:
        self._connection.send(problem)
        os.kill(self._pid, signal.SIGKILL)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_dead_solver_process_is_replaced(process: SolverProcess) -> None:
    process.warm_up()
    assert process._connection is not None
    process._connection = cast("Connection", Deadly(process._connection, pid_of(process)))
    with pytest.raises(SolverError, match=r"died \(exit code -9\)"):
        process.solve(make_problem(300, 100, 3), SearchLimits(time_limit=25))
    assert process.solve(make_problem(2, 2, 2), SearchLimits()).status


def test_overdue_solver_process_is_killed_and_replaced(process: SolverProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsf.optimizer.solver._STOP_SECONDS", 0.2)
    process.warm_up()
    process.solve(make_problem(2, 2, 2), SearchLimits())
    pid = pid_of(process)
    monkeypatch.setattr(process, "_grace", 0.2)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(SolverError, match="did not end within"):
        process.solve(make_problem(2, 2, 2), SearchLimits(time_limit=0.1))
    monkeypatch.undo()
    assert process.solve(make_problem(2, 2, 2), SearchLimits()).status
    assert pid_of(process) != pid


def test_busy_solver_raises_an_error_after_the_waiting_time(process: SolverProcess) -> None:
    process.warm_up()
    pid = pid_of(process)
    # The previous plan does not end until a caller was notified.
    os.kill(pid, signal.SIGSTOP)
    busy = threading.Thread(target=process.solve, args=(make_problem(2, 2, 2), SearchLimits()))
    busy.start()
    try:
        wait_for(process._lock.locked, 5)
        with pytest.raises(SolverError, match=r"busy with other plans for 0\.2 s"):
            process.solve(make_problem(2, 2, 2), SearchLimits())
    finally:
        os.kill(pid, signal.SIGCONT)
        busy.join()


def test_close_ends_running_and_waiting_searches() -> None:
    process = SolverProcess(patience=600)
    process.warm_up()
    pid = pid_of(process)
    # A stopped process does not end by itself.
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(process.solve, make_problem(2, 2, 2), SearchLimits()) for _ in range(2)]
        wait_for(process._lock.locked, 5)
        process.close()
        for future in waiting:
            with pytest.raises(SolverError, match="the optimiser is shutting down, no plan was made; try again"):
                future.result(60)
    assert not Path(f"/proc/{pid}").exists()
