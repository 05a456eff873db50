"""Runs our modules as processes, forked from one that has loaded them, for a third of the CPU of a fresh process.

For tests of what a process does. Session, descriptors, environment, signals, exit codes and what is printed at the very
end are those of a process; how the interpreter and its imports start is for other tests.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import forkserver
from tests.support.child import Child
from tests.support.wait import PATIENCE

#: Variables that are read at the start of a process. They belong to the library of tests/faults/movedclock.py.
_AT_START = ("LD_PRELOAD", "MOVED_CLOCK")
#: Servers by module and values of the variables above.
_servers: dict[tuple[str | None, ...], _Server] = {}
_lock = threading.Lock()


def child(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, inherit: bool = True
) -> Child:
    """Return a `Child`, forked if the command runs one of our modules."""
    match command:
        case [sys.executable, "-m", module, *arguments] if module in forkserver.LOADED:
            return Forked(module, log, environment, arguments=arguments, inherit=inherit)
    return Child(command, log, environment, inherit=inherit)


class Forked(Child):
    """A process of one of our modules, such as a `Child` of `python -m MODULE ARGUMENT ...`.

    `errors` is the file for stderr; default: `log`.
    """

    def __init__(
        self,
        module: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        arguments: Sequence[str] = (),
        inherit: bool = True,
        errors: Path | None = None,
    ) -> None:
        self.log = log
        log.touch()
        module_and_argument = " ".join([module, *arguments[:1]])
        name = module_and_argument if module_and_argument in forkserver.LOADED else module
        variables = {**(os.environ if inherit else {}), **(environment or {})}
        self._process = _server(name, variables).start(
            module=module,
            arguments=[str(argument) for argument in arguments],
            environment=variables,
            folder=str(Path.cwd()),
            out=str(log.absolute()),
            err=str((errors or log).absolute()),
        )


def dsf(
    arguments: Sequence[str], environment: Mapping[str, str], timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command with this environment alone. Raises TimeoutExpired after `timeout` seconds."""
    return run("dsf.cli", arguments, environment, timeout)


def celery(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of Celery on our application, with this environment alone."""
    return run("celery", ["-A", "dsf.celery", *arguments], environment)


def run(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a module with this environment alone. Raises TimeoutExpired after `timeout` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder, name) for name in ("out", "err"))
        process = Forked(module, out, environment, arguments=arguments, inherit=False, errors=err)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess([module, *arguments], code, out.read_text(), err.read_text())


class _Process:
    """The parts of subprocess.Popen that `Child` uses."""

    def __init__(self, server: _Server, pid: int) -> None:
        self._server = server
        self.pid = pid

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self._server.get_exit_code(self.pid)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            time.sleep(0.01)
        return code


class _Server:
    """A process that has loaded a module. It ends with this one, and the processes forked from it end with it."""

    def __init__(self, name: str, variables: Mapping[str, str]) -> None:
        self._socket, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, forkserver.MOST_BYTES)
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("DSF_", "PYTEST_"))}
        environment.update(variables)
        with server_socket:
            # A separate session, because Ctrl-C is for the tests, whose end the server notices.
            self._process = subprocess.Popen(
                [sys.executable, "-P", forkserver.__file__, str(server_socket.fileno()), name],
                pass_fds=[server_socket.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
            )
        atexit.register(self._end)

    def start(self, **request: object) -> _Process:
        """Fork a process that runs the module."""
        with self._lock:
            self._socket.send(json.dumps(request).encode())
            while True:
                reply = self._receive()
                if "code" not in reply:
                    return _Process(self, reply["pid"])

    def get_exit_code(self, pid: int) -> int | None:
        """Return the exit code of a process; None while it runs."""
        with self._lock, contextlib.suppress(BlockingIOError):
            while pid not in self._codes:
                self._receive(socket.MSG_DONTWAIT)
        return self._codes.get(pid)

    def _receive(self, flags: int = 0) -> dict[str, int]:
        packet = self._socket.recv(forkserver.MOST_BYTES, flags)
        if not packet:
            raise RuntimeError(f"the process that forks others has ended: {self._process.wait()}")
        reply: dict[str, int] = json.loads(packet)
        if "code" in reply:
            self._codes[reply["pid"]] = reply["code"]
        else:
            # Drop the exit code of an earlier process with the same id.
            self._codes.pop(reply["pid"], None)
        return reply

    def _end(self) -> None:
        self._socket.close()
        self._process.wait(PATIENCE)


def _server(name: str, variables: Mapping[str, str]) -> _Server:
    at_start = {variable: variables[variable] for variable in _AT_START if variable in variables}
    key = (name, *map(at_start.get, _AT_START))
    with _lock:
        if key not in _servers:
            _servers[key] = _Server(name, at_start)
        return _servers[key]
