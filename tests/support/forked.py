"""Runs our modules as processes, forked from one that has loaded them, for a third of the CPU of a fresh process.

For tests of what a process does. Session, descriptors, environment, signals, exit codes and what is printed at the very
end are those of a process; how the interpreter and its imports start is for other tests.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import forkserver
from tests.support.child import Child
from tests.support.wait import PATIENCE

#: Variables that are read at the start of a process. They belong to the library of tests/faults/movedclock.py.
_AT_START = ("LD_PRELOAD", "MOVED_CLOCK")
#: Connections to servers by module and values of the variables above.
_servers: dict[tuple[str | None, ...], _Server] = {}
#: Number of servers to start for one connection.
_MOST_STARTS = 3
#: Servers that this process has started.
started_servers: list[subprocess.Popen[bytes]] = []
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
    """A connection to a process that has loaded a module. Processes that are forked by it end with this one."""

    def __init__(self, name: str, variables: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        key = json.dumps([_get_run(), name, *variables.items()])
        # In Linux's abstract namespace, where an address is free again when its last process has ended.
        address = f"\0dsf-fork-{hashlib.sha256(key.encode()).hexdigest()}"
        self._socket, packet = _connect(address, name, variables)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, forkserver.MOST_BYTES)
        #: Process that forks others for this one.
        self.pid: int = json.loads(packet)["pid"]

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
            raise RuntimeError("the process that forks others has ended")
        reply: dict[str, int] = json.loads(packet)
        if "code" in reply:
            self._codes[reply["pid"]] = reply["code"]
        else:
            # Drop the exit code of an earlier process with the same id.
            self._codes.pop(reply["pid"], None)
        return reply

    def close(self) -> None:
        """End the processes."""
        self._socket.close()


def _server(name: str, variables: Mapping[str, str]) -> _Server:
    at_start = {variable: variables[variable] for variable in _AT_START if variable in variables}
    key = (name, *map(at_start.get, _AT_START))
    with _lock:
        if key not in _servers:
            _servers[key] = _Server(name, at_start)
        return _servers[key]


def list_own_servers() -> list[int]:
    """Return the ids of the processes that fork others for this one."""
    return [server.pid for server in _servers.values()]


@functools.cache
def _get_run() -> str:
    """Return the name of this run, which its test processes share."""
    return os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex


def _connect(address: str, name: str, variables: Mapping[str, str]) -> tuple[socket.socket, bytes]:
    """Connect to the server at this address, started first if needed. Returns its first packet, too."""
    starts = 0
    while starts < _MOST_STARTS:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Refused without a server; reset by one that ends because its last client has gone.
        with contextlib.suppress(ConnectionRefusedError, ConnectionResetError):
            connection.connect(address)
            if packet := connection.recv(forkserver.MOST_BYTES):
                return connection, packet
        connection.close()
        starts += _start_server(address, name, variables)
    raise RuntimeError(f"the process that forks {name} does not start")


def _start_server(address: str, name: str, variables: Mapping[str, str]) -> bool:
    """Start the server. Returns False if another test process is starting it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DSF_", "PYTEST_"))}
    environment.update(variables)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            time.sleep(0.05)
            return False
        listener.listen()
        # A separate session, because Ctrl-C is for the tests, whose end the server notices.
        process = subprocess.Popen(
            [sys.executable, "-P", forkserver.__file__, str(listener.fileno()), name],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
    started_servers.append(process)
    return True


@atexit.register
def _end() -> None:
    """Close all connections, and wait for the servers that started here: other test processes may use them."""
    for server in _servers.values():
        server.close()
    for process in started_servers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
