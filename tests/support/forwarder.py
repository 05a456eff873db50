"""An address in front of changing servers, such as a Service of Kubernetes or a virtual IP."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Forwarder:
    """Forwards each connection to the port that is `target` when it is made. A context manager."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._open: list[socket.socket] = []
        #: Ends of the forwarded connections, and of those from which a subclass forwards nothing.
        self.passing: list[socket.socket] = self._open
        self.forgotten: set[socket.socket] = set()
        self._flows = threading.Event()
        self._flows.set()

    def __enter__(self) -> Forwarder:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in (self._listener, *self._open):
            _end(connection)
            connection.close()

    def cut(self) -> None:
        """Close all connections, and refuse new ones until `target` changes."""
        self.target = 0
        for connection in self._open:
            _end(connection)

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Stop forwarding data while the context is open; connections stay, and new ones are accepted.

        Data that were sent meanwhile are forwarded at the end.
        """
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._open.append(near)
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    _end(near)
                    continue
                self._open.append(far)
                if not self.target:
                    # The relay was cut meanwhile.
                    _end(far)
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def pass_on(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        """Forward data from one end of a connection to the other."""
        sink.sendall(data)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                self.pass_on(source, sink, data)
        for connection in (source, sink):
            _end(connection)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
