"""A relay that drops idle connections, as load balancers and NAT do."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Final

#: SO_LINGER with which close() sends a reset.
_RESET: Final = struct.pack("ii", 1, 0)


class _Use:
    """Start of a connection, and the time of its last use in either direction, by `time.monotonic`."""

    def __init__(self) -> None:
        self.began_at = self.last_at = time.monotonic()


class ForgetfulRelay:
    """Forwards connections to a port. Data on a connection that was idle for too long are dropped in both directions,
    or requests on it get a reset.

    `seconds` is the maximum idle time. A context manager.
    """

    def __init__(self, target: int, seconds: float, *, resets: bool) -> None:
        self._target = target
        self._seconds = seconds
        self._resets = resets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        # time.monotonic() of the last call of forget().
        self._forgot_at = 0.0
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        #: Number of connections, and of those that were used after the relay had dropped them.
        self.connections = 0
        self.forgotten = 0

    def __enter__(self) -> ForgetfulRelay:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in (self._listener, *self._open):
            connection.close()

    def forget(self) -> None:
        """Drop all current connections. New ones work."""
        self._forgot_at = time.monotonic()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self.connections += 1
                self._open += [near, far]
                use = _Use()
                for target in (self._ask, self._answer):
                    self._threads.append(threading.Thread(target=target, args=(near, far, use)))
                    self._threads[-1].start()

    def _is_forgotten(self, use: _Use) -> bool:
        return time.monotonic() - use.last_at > self._seconds or use.began_at < self._forgot_at

    def _ask(self, near: socket.socket, far: socket.socket, use: _Use) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                if self._is_forgotten(use):
                    self.forgotten += 1
                    if self._resets:
                        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                        near.close()
                        return
                    continue
                use.last_at = time.monotonic()
                far.sendall(data)

    def _answer(self, near: socket.socket, far: socket.socket, use: _Use) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                if not self._is_forgotten(use):
                    use.last_at = time.monotonic()
                    near.sendall(data)
