"""How every HTTP service of the framework listens, serves and ends."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from dsf.errors import SettingsError
from dsf.http.front import Front
from dsf.http.protocol import PatientProtocol
from dsf.process.listening import family_of, prepare

if TYPE_CHECKING:
    from starlette.types import ASGIApp

#: Connections that may wait to be accepted.
_BACKLOG = 128


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SettingsError naming the variable that sets the port.

    Not by uvicorn, which exits with its own message when the port is in use.
    """
    try:
        family, host = family_of(host)
        # With an explicit protocol: only then does asyncio disable Nagle's delay, 40 ms of every answer.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            prepare(listener)
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise SettingsError(
            f"DSF_LISTEN_PORT: cannot listen on {host}:{port} ({error.strerror}); choose another port, 0 takes a free "
            "one"
        ) from None
    return listener


def configured(app: ASGIApp, *, shutdown_seconds: int) -> uvicorn.Config:
    """How to serve an application: within the limits of `PatientProtocol` and `Front`, without a log of its own."""
    return uvicorn.Config(
        Front(app),
        # Keep the framework's logging; a line for each scrape and probe would be noise.
        log_config=None,
        access_log=False,
        http=PatientProtocol,
        # The page itself decides whose forwarded headers count; nothing else reads any.
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=shutdown_seconds,
    )


def serve(server: uvicorn.Server, listener: socket.socket, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. `announce` says that the service listens: from then on signals are obeyed.

    The server has its own handlers while it runs. These handle a signal before that, and the one that it raises again
    at its end, which would otherwise kill the process before its caller could clean up.
    """

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    announce()
    server.run(sockets=[listener])
