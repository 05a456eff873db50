"""A real HTTP server whose responses a test scripts: normal ones, none, slow ones, wrong lengths, early ends."""

from __future__ import annotations

import contextlib
import email.utils
import functools
import gzip
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.wait import PATIENCE


@dataclass(frozen=True)
class Received:
    """A received request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body, parsed."""
        return json.loads(self.body)


Handler = Callable[["Exchange"], None]


@dataclass
class Exchange:
    """A request, and methods to respond to it."""

    request: Received
    http: BaseHTTPRequestHandler
    closing: threading.Event

    def send(self, body: bytes, status: int = 200, **headers: str) -> None:
        """Send a complete response. Underscores in header names stand for dashes."""
        self.start(status, len(body), **headers)
        self.http.wfile.write(body)

    def start(self, status: int, length: int | None, **headers: str) -> None:
        """Send status line and headers; without Content-Length if the length is None."""
        self.http.send_response(status)
        headers.setdefault("Content_Type", "application/json")
        for name, value in headers.items():
            self.http.send_header(name.replace("_", "-"), value)
        if length is None:
            self.http.send_header("Connection", "close")
            self.http.close_connection = True
        else:
            self.http.send_header("Content-Length", str(length))
        self.http.end_headers()


class ScriptedServer:
    """Answers each request with the next handler of `script`; the last one is repeated. A path may have its own
    script.

    `requests` are the received ones, `connections` is the number of opened ones. With `tls` the server uses https. A
    context manager.
    """

    def __init__(self, *script: Handler, tls: ssl.SSLContext | None = None, **by_path: Handler) -> None:
        self.requests: list[Received] = []
        self._script = list(script)
        self._by_path: dict[str, list[Handler]] = {f"/{path}": [handler] for path, handler in by_path.items()}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._sockets: set[socket.socket] = set()
        self.connections = 0
        self._scheme = "http" if tls is None else "https"
        outer = self

        class _Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Headers and body in one segment, and without Nagle's delay.
            wbufsize = -1
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with outer._lock:
                    outer._sockets.add(self.connection)
                    outer.connections += 1

            def finish(self) -> None:
                with outer._lock:
                    outer._sockets.discard(self.connection)
                with contextlib.suppress(OSError):
                    super().finish()

            def _serve(self) -> None:
                outer._serve(self)

            do_GET = do_POST = _serve

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        class _Server(ThreadingHTTPServer):
            # Threads are joined when the server closes, so that no thread or socket outlives a test.
            daemon_threads = False
            request_queue_size = 64

            def handle_error(self, *_: object) -> None:
                """Ignore errors, because disconnecting clients are expected in these tests."""

        self._server = _Server(("127.0.0.1", 0), _Handler)
        if tls is not None:
            # The handshake runs in the connection's thread, so that a missing one does not block other connections.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        """Port on which it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """URL: `http://127.0.0.1:port`, or https."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def script(self, *handlers: Handler, path: str | None = None) -> None:
        """Set the handlers of future requests, for one path if given."""
        with self._lock:
            if path is None:
                self._script = list(handlers)
            else:
                self._by_path[path] = list(handlers)

    def paths(self) -> list[str]:
        """Return the paths of the requests so far."""
        return [request.path for request in list(self.requests)]

    def _serve(self, http: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(http.path)
        length = int(http.headers.get("Content-Length", 0))
        request = Received(
            http.command,
            parts.path,
            {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()},
            {name.title(): value for name, value in http.headers.items()},
            http.rfile.read(length),
        )
        with self._lock:
            self.requests.append(request)
            handlers = self._by_path.get(parts.path, self._script)
            handler = handlers.pop(0) if len(handlers) > 1 else handlers[0]
        try:
            handler(Exchange(request, http, self._closing))
            http.wfile.flush()
        except OSError:
            http.close_connection = True

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        with self._lock:
            for connection in self._sockets:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join(PATIENCE)


def answer(body: object, status: int = 200, **headers: str) -> Handler:
    """Return a handler with a complete response: bytes and text are sent unchanged, anything else as JSON."""
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()

    def handle(exchange: Exchange) -> None:
        exchange.send(data, status, **headers)

    return handle


def with_clock_offset(ahead: float, then: Handler) -> Handler:
    """Return a handler that responds like another one, with a Date header from a clock that is ahead."""

    def handle(exchange: Exchange) -> None:
        date = email.utils.formatdate(time.time() + ahead, usegmt=True)
        exchange.http.date_time_string = lambda *_: date  # type: ignore[method-assign]
        try:
            then(exchange)
        finally:
            # The connection may be reused.
            del exchange.http.date_time_string

    return handle


def zipped(body: bytes) -> Handler:
    """Return a handler with a complete response in gzip, with Content-Encoding."""
    return answer(gzip.compress(body), Content_Encoding="gzip")


def matrix(*series: object) -> Handler:
    """Return a handler with Prometheus' response to a range query."""
    document = {"status": "success", "data": {"resultType": "matrix", "result": list(series)}}
    return answer(json.dumps(document, separators=(",", ":")))


def hang(exchange: Exchange) -> None:
    """Send no response until the server closes."""
    exchange.closing.wait()
    exchange.http.close_connection = True


def slow(seconds: float, then: Handler) -> Handler:
    """Return a handler that waits, then runs another handler."""

    def handle(exchange: Exchange) -> None:
        exchange.closing.wait(seconds)
        then(exchange)

    return handle


def send_slowly(exchange: Exchange) -> None:
    """Send a response at a byte per 50 ms."""
    exchange.start(200, 1_000_000)
    while not exchange.closing.wait(0.05):
        exchange.http.wfile.write(b"x")
        exchange.http.wfile.flush()


def send_half(exchange: Exchange) -> None:
    """Send half of the announced bytes, then close the connection."""
    exchange.start(200, 2000)
    exchange.http.wfile.write(b'{"status":"success","data":{"resultType":"matrix","result":[' + b" " * 940)
    exchange.http.close_connection = True


def send_half_chunked(exchange: Exchange) -> None:
    """Send a chunked response without its last chunk."""
    exchange.http.send_response(200)
    exchange.http.send_header("Transfer-Encoding", "chunked")
    exchange.http.end_headers()
    exchange.http.wfile.write(b"10\r\n" + b"x" * 16 + b"\r\n20\r\nonly this")
    exchange.http.close_connection = True


def close_early(exchange: Exchange) -> None:
    """Close the connection without a response."""
    exchange.http.close_connection = True


def send_endless(length: int | None = None) -> Handler:
    """Return a handler with a body of 1 GB, announced with `length` or without Content-Length."""

    def handle(exchange: Exchange) -> None:
        exchange.start(200, length)
        block = b" " * (1 << 20)
        for _ in range(1024):
            exchange.http.wfile.write(block)

    return handle


@functools.cache
def _zeros() -> bytes:
    return gzip.compress(bytes(1 << 24), 9)


def send_gzip_bomb(exchange: Exchange) -> None:
    """Send 1 GB of zeros in 1 MB of gzip."""
    block = _zeros()
    exchange.start(200, len(block) * 64, Content_Encoding="gzip")
    for _ in range(64):
        exchange.http.wfile.write(block)


@dataclass
class Gate:
    """A handler that delays a response until a test opens it; `entered` is set when a request waits."""

    then: Handler
    entered: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def __call__(self, exchange: Exchange) -> None:
        self.entered.set()
        while not self.opened.wait(0.02) and not exchange.closing.is_set():
            pass
        self.then(exchange)
