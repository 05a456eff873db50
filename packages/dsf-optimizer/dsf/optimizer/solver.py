"""Runs the solver in a separate process.

There are three reasons: HiGHS writes to file descriptor 1, which would break a protocol on standard output. It uses a
core for seconds. A search that exceeds its time can be killed without side effects.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Final

import dsf.log
from dsf.errors import DsfError, ManifestError
from dsf.optimizer.errors import SolverError
from dsf.optimizer.model import PlanInput, SearchLimits
from dsf.optimizer.plan import Plan

log = dsf.log.get(__name__)

#: Seconds for a process to end by itself.
_STOP_SECONDS: Final = 5.0
_CLOSED_MESSAGE: Final = "the optimiser is shutting down, no plan was made; try again"


class SolverProcess:
    """Solves problems one after the other, in a process that starts with the first problem. Thread-safe."""

    def __init__(self, *, patience: float = 30.0, grace: float = 60.0) -> None:
        """A problem waits at most `patience` seconds for earlier problems.

        A search may exceed its time limit by `grace` seconds, for reading the problem, building the model, and ending.
        """
        self.patience = patience
        self._grace = grace
        self._is_closed = False
        self._lock = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None

    def solve(self, problem: PlanInput, limits: SearchLimits) -> Plan:
        """Return the result of `dsf.optimizer.solve.solve`. Raises the errors of that function, and SolverError."""
        if not self._lock.acquire(timeout=self.patience):
            raise SolverError(
                f"the solver is busy with other plans for {self.patience:g} s by now; try again, or ask for shorter "
                "time limits"
            )
        try:
            return self._solve(problem, limits)
        finally:
            self._lock.release()

    def warm_up(self) -> None:
        """Start the process now, so that the first plan does not wait for it."""
        with self._lock:
            self._start()

    def close(self) -> None:
        """End the process permanently, even during a search. Callers that wait for a plan get a SolverError."""
        self._is_closed = True
        while not self._lock.acquire(timeout=0.05):
            # Repeat the kill, because the process may just be starting, or the thread that waits for it may end it.
            with contextlib.suppress(AttributeError, ValueError):
                if self._process is not None:
                    self._process.kill()
        try:
            self._end()
        finally:
            self._lock.release()

    def _solve(self, problem: PlanInput, limits: SearchLimits) -> Plan:
        if self._is_closed:
            raise SolverError(_CLOSED_MESSAGE)
        connection = self._start()
        response: object
        try:
            connection.send((problem, limits))
            if not connection.poll(limits.time_limit + self._grace):
                raise SolverError(
                    f"the solver did not end within {self._grace:g} s after its time limit of {limits.time_limit:g} s; "
                    "ask for fewer workloads or clusters at once"
                )
            response = connection.recv()
        except (EOFError, OSError) as error:
            code = self._end()
            raise SolverError(
                _CLOSED_MESSAGE
                if self._is_closed
                else f"the solver's process died (exit code {code}); with -9 it may have had too little memory"
            ) from error
        except BaseException:
            # End a process that is too slow or was interrupted, because its late response must not be taken for the
            # response to the next problem.
            self._end()
            raise
        if isinstance(response, Plan):
            return response
        raise response if isinstance(response, DsfError) else SolverError(f"the solver failed: {response!r}")

    def _start(self) -> Connection:
        if self._process is not None and self._process.is_alive() and self._connection is not None:
            return self._connection
        self._end()
        # Do not fork, because this process has threads.
        context = multiprocessing.get_context("spawn")
        own_connection, child_connection = context.Pipe()
        process = context.Process(target=_serve, args=(child_connection,), name="dsf-solver", daemon=True)
        process.start()
        child_connection.close()
        self._process, self._connection = process, own_connection
        log.debug("solver started", pid=process.pid)
        return own_connection

    def _end(self) -> int | None:
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is None:
            return None
        # Terminate the process, because it ends at the loss of the connection only if it is not solving.
        process.terminate()
        process.join(_STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
        code = process.exitcode
        process.close()
        return code


def _serve(connection: Connection) -> None:
    """Receive problems and send a plan or an error for each, until the connection closes."""
    # Redirect standard output to standard error, because libraries write to it.
    os.dup2(2, 1)
    # Ignore Ctrl-C, which a terminal sends to every process, because this process ends with its parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from dsf.optimizer.solve import solve

    with contextlib.suppress(EOFError, OSError):
        while True:
            problem, limits = connection.recv()
            response: object
            try:
                response = solve(problem, limits)
            except ManifestError as error:
                response = error
            except Exception as error:  # noqa: BLE001 (a bug, which is reported to the caller)
                response = SolverError(f"the solver failed: {type(error).__name__}: {error}")
            connection.send(response)
