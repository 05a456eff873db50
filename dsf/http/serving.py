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
    """The used part of uvicorn.Server: this module is also loaded without uvicorn."""

    should_exit: bool


def listen(host: str, port: int, variable: str) -> socket.socket:
    """A listening socket. Raises SettingsError naming `variable`, which sets the port.

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
            f"{variable}: cannot listen on {host}:{port} ({error.strerror}); choose another port, 0 takes a free one"
        ) from None
    return listener


def end_on_signals(server: Server) -> None:
    """End the server on SIGTERM and SIGINT.

    It has its own handlers while it runs. These handle a signal before that, and the one that it raises again at its
    end, which would otherwise kill the process before its caller could clean up.
    """

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
