"""An HTTP server that plays an API server by a script, for responses that a real one does not give on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from dsf.kube.session import Session


class Exchange:
    """A request, and the ways to respond to it."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self._handler = handler
        parts = urlsplit(handler.path)
        self.path = parts.path
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}

    @property
    def is_watch(self) -> bool:
        """True if it requests a watch rather than a list."""
        return "watch" in self.query

    def answer(self, body: dict[str, Any], status: int = 200, **headers: str) -> None:
        """A whole answer. `retry_after="1"` becomes the header Retry-After."""
        data = json.dumps(body).encode()
        self._handler.send_response(status)
        self._handler.send_header("Content-Type", "application/json")
        self._handler.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()
        self._handler.wfile.write(data)

    def begin(self) -> None:
        """The head of a stream."""
        self._handler.send_response(200)
        self._handler.send_header("Content-Type", "application/json")
        self._handler.send_header("Transfer-Encoding", "chunked")
        self._handler.end_headers()

    def chunk(self, data: bytes) -> None:
        """A part of a stream."""
        self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, kind: str, obj: dict[str, Any]) -> None:
        """Send an event of a watch."""
        self.chunk(json.dumps({"type": kind, "object": obj}).encode() + b"\n")

    def end(self) -> None:
        """The regular end of a stream."""
        self._handler.wfile.write(b"0\r\n\r\n")

    def drop(self) -> None:
        """Close the connection without an end."""
        self._handler.close_connection = True


class StubServer:
    """Calls `script` with each request in a separate thread; `stopping` is set before the server waits for them."""

    def __init__(self, script: Callable[[Exchange], None]) -> None:
        self.stopping = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                script(Exchange(self))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def session(self) -> Session:
        """Return a session with it."""
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{self._server.server_address[1]}"
        return Session(configuration)

    def __enter__(self) -> StubServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def config_map(name: str, version: int, value: str = "") -> dict[str, Any]:
    """Return a ConfigMap as a list or a watch gives it."""
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}}


def listing(version: int, *items: dict[str, Any]) -> dict[str, Any]:
    """Return the response to a list."""
    return {"kind": "ConfigMapList", "metadata": {"resourceVersion": str(version)}, "items": list(items)}
