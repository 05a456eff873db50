"""Has one of our modules loaded and forks processes that run it: the other half of tests/support/forked.py.

    python -P forkserver.py SOCKET NAME

Each module has its own server, so a process finds loaded exactly what it would load itself, and nothing of another
role. All test processes of a run connect to the same servers, because loading costs seconds: a server forks a process
for each connection, and that process forks those that run the module.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from typing import Any

_CELERY = ("celery.app.amqp", "celery.app.control", "celery.signals", "dsf.redislink.broker")
_WORKER = (
    *_CELERY,
    "billiard.pool",
    "celery.app.trace",
    "celery.backends.base",
    "celery.utils.debug",
    "dsf.worker.liveness",
)
_AGENT = (
    "dsf.agent.main",
    "dsf.settings",
    "structlog",
    "celery.apps.worker",
    *_WORKER,
    "celery.concurrency.thread",
)
_RESULTS = ("dsf.results.worker", *_WORKER, "dsf.backends")
_COMMANDS = ("dsf.cli.dryrun", "dsf.cli.main", "dsf.cli.session", "dsf.cli.statusreport")
#: Module, or module and first argument -> modules that are loaded for it, in the order of a normal start. A function is
#: called: its result is cached, and takes most of the time of a start.
LOADED: dict[str, tuple[str, ...]] = {
    "celery": ("celery.bin.celery", "structlog", "celery.apps.beat", "celery.apps.worker", *_RESULTS),
    "dsf.worker": ("celery.bin.celery", *_RESULTS),
    "dsf.agent": _AGENT,
    "dsf.cli": _COMMANDS,
    "dsf.cli optimize": (*_COMMANDS, "dsf.optimizer.commands.optimize", "dsf.optimizer.service"),
    "dsf.cli optimizer": (*_COMMANDS, "dsf.optimizer.commands.optimizer", "dsf.optimizer.main"),
    "dsf.hub": (
        "dsf.settings",
        "dsf.services.process",
        *_RESULTS,
        "celery.beat",
        "dsf.services.beat",
        "dsf.hub.service",
        "dsf.web.service",
        "dsf.web.rendering:compile_templates",
        "dsf.http.probes",
        "pydantic.v1",
        "anyio._core._sockets",
    ),
    # The imports of tests/integration/hostile/readers.py.
    "tests.support.hostile": (
        "dsf.settings",
        "anyio._backends._asyncio",
        "starlette.requests",
        "dsf.backtest.recording",
        "dsf.http",
        "dsf.optimizer.mcp",
        "dsf.otlp.scrape",
        "dsf.web.forms",
        "dsf.worker.remotecontrol",
        "multipart",
    ),
    "tests.integration.security.identities": (*_AGENT, "azure.identity", "botocore.session", "google.auth"),
}
#: Modules that a server may not load. The Celery application is built from the settings at import. Structlog checks at
#: import whether rich is there, so commands load both themselves.
_UNWANTED = {"": ("dsf.celery",), "dsf.cli": ("rich", "structlog")}
#: Maximum bytes of a request, which is one packet; most of it is the environment.
MOST_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1


#: Seconds after which a server ends that nobody has connected to: the process that started it was killed.
_LONELY = 60


def main() -> None:
    """Serve until the last client closes its connection. In a forked process, become the requested module."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    name = sys.argv[2]
    libc = ctypes.CDLL(None)
    for loaded in LOADED[name]:
        module, _, function = loaded.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()
    unwanted = [module for module in (*_UNWANTED[""], *_UNWANTED.get(name, ())) if module in sys.modules]
    if unwanted:
        raise RuntimeError(f"{name}: loaded before the settings are known: {unwanted}")
    # Freezing exempts loaded objects from garbage collection, which would copy their memory into each child.
    gc.collect()
    gc.freeze()
    control = _accept_clients(listener)
    request = _serve(control) if control is not None else None
    if request is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _prepare_process(request)
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _accept_clients(listener: socket.socket) -> socket.socket | None:
    """Fork for each client. Returns the connection in the new process, and None in the server after the last one."""
    clients: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(None if clients else _LONELY):
                if key.fileobj is not listener:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    os.waitpid(clients.pop(key.fd), 0)
                    continue
                connection, _ = listener.accept()
                pid = os.fork()
                if pid == 0:
                    for opened in clients:
                        os.close(opened)
                    listener.close()
                    connection.send(json.dumps({"pid": os.getpid()}).encode())
                    return connection
                connection.close()
                watched = os.pidfd_open(pid)
                clients[watched] = pid
                selector.register(watched, selectors.EVENT_READ)
            if not clients:
                # A client that connects at this moment sees a closed connection, and starts another server.
                return None


def _serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for each request. Returns the request in the new process, and None in the server after the last one."""
    running: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    pidfd = key.fd
                    selector.unregister(pidfd)
                    os.close(pidfd)
                    pid = running.pop(pidfd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    control.send(json.dumps({"pid": pid, "code": code}).encode())
                    continue
                packet = control.recv(MOST_BYTES)
                if not packet:
                    return None
                pid = os.fork()
                if pid == 0:
                    for opened in running:
                        os.close(opened)
                    control.close()
                    request: dict[str, Any] = json.loads(packet)
                    return request
                watched = os.pidfd_open(pid)
                running[watched] = pid
                selector.register(watched, selectors.EVENT_READ)
                control.send(json.dumps({"pid": pid}).encode())


def _prepare_process(request: dict[str, Any]) -> None:
    """Set up session, folder, environment, descriptors and arguments of the forked process."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    _open(0, os.devnull, os.O_RDONLY)
    for number, path in ((1, request["out"]), (2, request["err"])):
        _open(number, path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    lines = 1 if os.environ.get("PYTHONUNBUFFERED") else -1
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", lines, encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.argv = [request["module"], *request["arguments"]]


def _open(number: int, path: str, flags: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, number)
    if opened != number:
        os.close(opened)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        main()
