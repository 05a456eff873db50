"""Choosing TCP ports of this machine."""

from __future__ import annotations

import socket
from collections.abc import Callable

LOCALHOST = "127.0.0.1"


def is_free(port: int, host: str = LOCALHOST) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do it: connections of an ended server that linger do not keep the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class Ports:
    """Hands out ports, each once. `say` is told when a well-known port is in use by somebody else."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._taken: set[int] = set()

    def choose(self, preferred: int, what: str) -> int:
        """`preferred` if it is free, else any free port; `what` names the server in the message."""
        port = preferred
        if port in self._taken or not is_free(port):
            port = self._any()
            self._say(f"port {preferred} is in use; {what} gets port {port}")
        self._taken.add(port)
        return port

    def any(self) -> int:
        """A free port."""
        port = self._any()
        self._taken.add(port)
        return port

    def _any(self) -> int:
        while True:
            with socket.socket() as probe:
                probe.bind((LOCALHOST, 0))
                port = int(probe.getsockname()[1])
            if port not in self._taken:
                return port
