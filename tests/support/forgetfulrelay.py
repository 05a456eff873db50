"""A relay that forgets idle connections, as load balancers and NAT do."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Final

#: SO_LINGER that makes close() send a reset.
_RESET: Final = struct.pack("ii", 1, 0)


class ForgetfulRelay:
    """Passes connections on to a port. Requests on a connection that was idle too long are dropped, or answered by a
    reset.

    `seconds` is how long it remembers an idle one. Use as a context manager.
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
        #: Connections that were made, and those that were used after they were forgotten.
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
        """Forget all connections that there are now. New ones work."""
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
                for target in (self._ask, self._answer):
                    self._threads.append(threading.Thread(target=target, args=(near, far)))
                    self._threads[-1].start()

    def _ask(self, near: socket.socket, far: socket.socket) -> None:
        began_at = last_used_at = time.monotonic()
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                if time.monotonic() - last_used_at > self._seconds or began_at < self._forgot_at:
                    self.forgotten += 1
                    if self._resets:
                        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                        near.close()
                        return
                    continue
                last_used_at = time.monotonic()
                far.sendall(data)

    def _answer(self, near: socket.socket, far: socket.socket) -> None:
        began_at = time.monotonic()
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                if began_at >= self._forgot_at:
                    near.sendall(data)
