"""Listening and shutdown of the HTTP services."""

from __future__ import annotations

import signal
import socket
from types import FrameType
from typing import Protocol

from dsf.errors import SettingsError
from dsf.listening import family_of, prepare

#: Connections that may wait to be accepted.
_BACKLOG = 128


class Server(Protocol):
    """A uvicorn.Server, as far as it matters here: this module is loaded where uvicorn is not."""

    should_exit: bool


def listen(host: str, port: int, variable: str) -> socket.socket:
    """A socket that listens. Raises SettingsError naming `variable`, by which the port is set.

    Here and not in uvicorn, which ends the process with its own words when the port is in use.
    """
    try:
        family, host = family_of(host)
        # With the protocol named: asyncio switches off Nagle's delay, 40 ms of every answer, for such sockets only.
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
            f"{variable}: cannot listen on {host}:{port} ({error.strerror}); choose another port, 0 takes a free one"
        ) from None
    return listener


def end_on_signals(server: Server) -> None:
    """End the server on SIGTERM and SIGINT.

    It has handlers of its own while it runs. These are for a signal before that; and at its end it raises the signal
    once more, which would otherwise kill the process before its caller could clean up.
    """

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
