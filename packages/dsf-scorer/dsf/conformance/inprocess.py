"""Serves a scorer of the library in a thread of this process while its cases run."""

from __future__ import annotations

import importlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import Any, Final

#: Seconds for the scorer to start, and to end.
_TIMEOUT_SECONDS: Final = 15.0


class NotServedError(Exception):
    """A scorer cannot be served; the message says why."""


@contextmanager
def served(name: str, folder: Path) -> Iterator[str]:
    """Serve the ASGI application `module:object`, searched in `folder` first, and yield its URL. Raises NotServedError.

    Requests use real HTTP, so the scorer's own limits and errors are those that an agent would meet. Modules of the
    folder are unloaded afterwards, because modules of the next folder may have the same names.
    """
    modules_before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield from _serve(_load(name), name)
    finally:
        sys.path.remove(str(folder))
        for module in set(sys.modules) - modules_before:
            file = getattr(sys.modules[module], "__file__", None)
            # Modules of an environment in the folder stay loaded: extensions such as numpy's load only once per
            # process.
            if file and "-packages" not in file and Path(file).resolve().is_relative_to(folder.resolve()):
                del sys.modules[module]


def _load(name: str) -> Any:
    module, _, attributes = name.partition(":")
    try:
        return reduce(getattr, attributes.split("."), importlib.import_module(module))
    except Exception as error:  # noqa: BLE001 (an author's module may raise anything)
        raise NotServedError(f"{name} cannot be imported: {type(error).__name__}: {error}") from None
    except SystemExit as error:
        raise NotServedError(f"{name} cannot be imported: it ends the process with {error.code!r}") from None


def _serve(application: Any, name: str) -> Iterator[str]:
    import uvicorn

    if not callable(application):
        raise NotServedError(f"{name} is no ASGI application such as a Scorer or a ScorerApp")
    # With the protocol named: asyncio disables Nagle's delay only for such sockets.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=5))

        def run() -> None:
            # uvicorn logs why an application does not start.
            with suppress(SystemExit, RuntimeError):
                server.run(sockets=[listener])

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            thread.join(0.01)
        try:
            if not server.started:
                raise NotServedError(f"{name} does not start; the lines before this one say why")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(_TIMEOUT_SECONDS)
