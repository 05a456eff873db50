"""An API server with `pods/portforward` and given objects, for cases that a real one does not produce on demand.

The server speaks Kubernetes' v4.channel.k8s.io and connects each WebSocket to a local port, or responds with a status.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket

#: Value of DSF_REDIS_POD; the server accepts any.
POD = "open-cluster-management/dynamic-scoring-redis-0:6379"
Response = tuple[int, Any]
DATA, ERROR = b"\x00", b"\x01"


class PortForwardServer:
    """A server in a thread. Its attributes can be changed at any time."""

    def __init__(self, target: int, *, port: int = 0, certificate: Path | None = None) -> None:
        """Listen on `port`, by default a free one. With a certificate, whose key is beside it, the server speaks TLS
        and is also a kubelet to a real API server."""
        self._certificate = certificate
        #: Port to which connections lead.
        self.target = target
        #: HTTP status of each request; 101 upgrades.
        self.status = 101
        #: Responses to other requests by method and path: a status and an object, or a function of the request's
        #: headers and body that returns both.
        self.documents: dict[tuple[str, str], Response | Callable[[Mapping[str, str], Any], Response]] = {}
        #: The kubelet's error text on the error channel, sent instead of connecting.
        self.kubelet_error = ""
        #: Path of each request so far.
        self.paths: list[str] = []
        self.authorizations: list[str | None] = []
        self.pings = 0
        self.open: set[_PortForward] = set()
        self.port = port
        self._loop = asyncio.new_event_loop()
        self._server: tornado.httpserver.HTTPServer | None = None
        self._is_started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Serve on a free port; again after `stop` on the same one."""
        if not self._thread.is_alive():
            self._thread.start()
            self._is_started.wait(10.0)
            return
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10.0)

    def stop(self) -> None:
        """Cut all connections and refuse new ones."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10.0)

    def close(self) -> None:
        """End the thread."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._is_started.set()
        self._loop.run_forever()

    async def _listen(self) -> None:
        application = tornado.web.Application([(r"/(?:apis?|portForward)/.*", _PortForward, {"owner": self})])
        tls = None
        if self._certificate is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(self._certificate, self._certificate.with_suffix(".key"))
        self._server = tornado.httpserver.HTTPServer(application, ssl_options=tls)
        (listener,) = tornado.netutil.bind_sockets(self.port, "127.0.0.1")
        self.port = listener.getsockname()[1]
        self._server.add_socket(listener)

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
        for handler in list(self.open):
            handler.cut()


class _PortForward(tornado.websocket.WebSocketHandler):
    def initialize(self, owner: PortForwardServer) -> None:
        self._owner = owner
        self._writer: asyncio.StreamWriter | None = None
        self._is_connected = asyncio.Event()

    async def prepare(self) -> None:
        self._owner.paths.append(self.request.uri or "")
        response = self._owner.documents.get((self.request.method or "", self.request.path))
        if response is not None:
            if callable(response):
                body = json.loads(self.request.body) if self.request.body else None
                response = response({name.lower(): value for name, value in self.request.headers.items()}, body)
            self.set_status(response[0])
            self.finish(json.dumps(response[1]))
            return
        self._owner.authorizations.append(self.request.headers.get("Authorization"))
        if self._owner.status != 101:
            self.set_status(self._owner.status)
            self.finish(json.dumps({"kind": "Status", "message": f'pods "redis-0" says {self._owner.status}'}))

    def check_origin(self, origin: str) -> bool:
        return True

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return "v4.channel.k8s.io" if "v4.channel.k8s.io" in subprotocols else None

    async def open(self) -> None:  # type: ignore[override]
        owner = self._owner
        owner.open.add(self)
        # API servers send `port` to kubelets.
        port = int(self.get_query_argument("ports", None) or self.get_query_argument("port"))
        for channel in (DATA, ERROR):
            await self.write_message(channel + struct.pack("<H", port), binary=True)
        if owner.kubelet_error:
            await self.write_message(ERROR + owner.kubelet_error.encode(), binary=True)
            self.close()
            return
        reader, self._writer = await asyncio.open_connection("127.0.0.1", owner.target)
        self._is_connected.set()
        asyncio.get_running_loop().create_task(self._copy(reader))

    async def _copy(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, tornado.websocket.WebSocketClosedError):
            while data := await reader.read(65536):
                await self.write_message(DATA + data, binary=True)
        self.close()

    async def on_message(self, message: str | bytes) -> None:  # type: ignore[override]
        assert isinstance(message, bytes)
        assert message[:1] == DATA
        # The relay may send data before the connection to the target exists.
        await self._is_connected.wait()
        assert self._writer is not None
        self._writer.write(message[1:])
        await self._writer.drain()

    def on_ping(self, data: bytes) -> None:
        self._owner.pings += 1

    def on_close(self) -> None:
        self._owner.open.discard(self)
        if self._writer is not None:
            self._writer.close()

    def cut(self) -> None:
        """Close the TCP connection without a WebSocket close frame."""
        self._owner.open.discard(self)
        if (connection := self.ws_connection) is not None:
            stream = getattr(connection, "stream", None)
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def serving(target: int, *, port: int = 0, certificate: Path | None = None) -> Iterator[PortForwardServer]:
    """Yield a running server; see PortForwardServer."""
    server = PortForwardServer(target, port=port, certificate=certificate)
    server.start()
    try:
        yield server
    finally:
        server.close()


def write_kubeconfig(file: Path, port: int, token: str) -> None:
    """Write a kubeconfig for an API server on this port, with a token."""
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "hub", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "agent", "user": {"token": token}}],
                "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "agent"}}],
                "current-context": "hub",
            }
        )
    )
