"""Chooses TCP ports of this machine."""

from __future__ import annotations

import errno
import os
import socket
import sys
import weakref
from collections.abc import Callable

LOCALHOST = "127.0.0.1"


def is_free(port: int, host: str = LOCALHOST) -> bool:
    """True if a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do, so that lingering connections of an ended server do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class Ports:
    """Allocates ports. While this object exists, no other one on this machine allocates the same ports.

    `say` is called if a well-known port is in use.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._taken: set[int] = set()
        #: File descriptors of the claims.
        self._claims: list[int] = []
        weakref.finalize(self, _close, self._claims)

    def choose(self, preferred: int, what: str) -> int:
        """Return `preferred` if it is free, else any free port; `what` names the server in the message."""
        if self._claim_port(preferred):
            return preferred
        port = self.any()
        self._say(f"port {preferred} is in use; {what} gets port {port}")
        return port

    def any(self) -> int:
        """Return a free port."""
        while True:
            with socket.socket() as probe:
                probe.bind((LOCALHOST, 0))
                port = int(probe.getsockname()[1])
            if self._claim_port(port):
                return port

    def _claim_port(self, port: int) -> bool:
        """Claim a port; False when it is in use.

        Its server listens only later, and two demos that start together would choose the same ports. An abstract Unix
        socket named after the port is exclusive like the port: in one network namespace, for all users.
        """
        if port in self._taken or not is_free(port):
            return False
        if sys.platform == "linux":
            with socket.socket(socket.AF_UNIX) as claim:
                try:
                    claim.bind(f"\0dsf-port-{port}")
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise
                    return False
                self._claims.append(claim.detach())
        self._taken.add(port)
        return True


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
