"""Configuration, start and stop of the HTTP services, with uvicorn on a socket of `listening`."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

import dsf.log
from dsf.http.listening import MAX_CONNECTIONS, Listener, Progress
from dsf.process.threads import SupervisedThread

if TYPE_CHECKING:
    from fastapi.telemetry import TelemetryConfig

#: FastAPI's own telemetry of each application is off. With tracing on, it would export a span, with the query of the
#: URL, for any visitor who sends a `traceparent`; with FASTAPI_OTEL_AUTO_CONFIGURE it may refuse to start.
WITHOUT_TELEMETRY: Final[TelemetryConfig] = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
#: Seconds for which an idle connection stays open. It is longer than the timeouts of load balancers (Google's is 600
#: s), because clients of a balancer get a 502 if the server closes the connection first. Open idle connections do no
#: harm, because they are the first to be closed in favour of new ones.
IDLE_SECONDS: Final = 620
#: Maximum bytes of a request's header. Proxies with single sign-on send cookies of 20 kB.
MAX_HEAD_BYTES: Final = 64 * 1024
#: Maximum lines of a request's header. The parser takes as long for an empty line as for a long one.
MAX_HEAD_LINES: Final = 300
#: Minimum mean size in bytes of the chunks of a request's body, apart from the first ones. The parser takes as long for
#: a chunk of one byte as for a large one.
_MIN_CHUNK_BYTES: Final = 64
_FREE_CHUNKS: Final = 200


class _BoundedParser(h11.Connection):
    """Parses the requests of a connection, and refuses those that take much time for their bytes.

    All requests are parsed in one thread, so a few clients with such requests would keep all others waiting.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self._chunks = 0
        self._chunk_bytes = 0

    def next_event(self) -> Any:
        """Return the next part of a request. Raises RemoteProtocolError."""
        if self.their_state is h11.IDLE:
            self._check_head()
            self._chunks = self._chunk_bytes = 0
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._chunks += 1
            self._chunk_bytes += len(event.data)
            if self._chunks > _FREE_CHUNKS + self._chunk_bytes // _MIN_CHUNK_BYTES:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        return event

    def _check_head(self) -> None:
        received_bytes, _ = self.trailing_data
        ends = [end for end in (received_bytes.find(b"\n\r\n"), received_bytes.find(b"\n\n")) if end >= 0]
        if received_bytes.count(b"\n", 0, min(ends, default=len(received_bytes))) > MAX_HEAD_LINES:
            raise h11.RemoteProtocolError("the header has too many lines", error_status_hint=431)


class _BoundedProtocol(H11Protocol):
    """uvicorn's protocol with a bounded parser."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = _BoundedParser()

    def send_400_response(self, msg: str) -> None:
        """Refuse the request, and close the connection. If the response has already begun, only close it."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()


_throttle: Final = dsf.log.Throttle(60.0)


def _is_new(record: logging.LogRecord) -> bool:
    """Return False for a warning of the last minute, because any client can cause one with each request."""
    return record.levelno != logging.WARNING or _throttle.take(str(record.msg)) is not None


def make_config(app: Any, listener: Listener, *, shutdown_seconds: int) -> uvicorn.Config:
    """Return the configuration to serve an ASGI application on the listener, without uvicorn's logs.

    After `shutdown_seconds` uvicorn cancels the requests that are still open at its end.
    """
    logging.getLogger("uvicorn.error").addFilter(_is_new)
    return uvicorn.Config(
        Progress(app, listener),
        # Keep the framework's logging, and write no line for each scrape and probe.
        log_config=None,
        log_level="warning",
        access_log=False,
        loop="asyncio",
        http=_BoundedProtocol,
        ws="none",
        interface="asgi3",
        # Ignore forwarded headers here, because only the page reads them, and it decides which proxies it trusts.
        proxy_headers=False,
        server_header=False,
        # Far above the listener's limit, because requests of closed connections count until the application ends them.
        limit_concurrency=16 * MAX_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_graceful_shutdown=shutdown_seconds,
    )


class HttpServer:
    """Serves an ASGI application in a thread with its own event loop. Can be started and stopped once."""

    def __init__(
        self,
        app: Any,
        host: str,
        port: int,
        *,
        name: str,
        shutdown_seconds: int = 1,
        variable: str = "DSF_LISTEN_PORT",
    ) -> None:
        """`name` is the name of the service and its thread. `variable` is the setting of the port, for errors."""
        self._app = app
        #: Host and port. After the start, the port is the one that the system chose for port 0.
        self.address = host, port
        self.name = name
        self._shutdown_seconds = shutdown_seconds
        self._variable = variable
        self._server: uvicorn.Server | None = None
        self._listener: Listener | None = None
        self._is_ending = False
        self._thread = SupervisedThread(self._run, name)

    def start(self) -> None:
        """Listen, and start to serve. Raises SettingsError if the address cannot be bound."""
        self._listener = Listener(*self.address, variable=self._variable)
        self.address = self._listener.getsockname()[:2]
        self._thread.start()

    def stop(self) -> None:
        """Finish open requests and release the port."""
        self._is_ending = True
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(self._shutdown_seconds + 2.0)
        if self._listener is not None:
            self._listener.close()

    def find_problem(self) -> str:
        """Return the reason why the server does not serve; empty while it does, before its start and after its stop."""
        is_serving = self._listener is None or self._is_ending or self._thread.is_alive()
        return "" if is_serving else f"the server of {self.name} has ended"

    def _run(self) -> None:
        # The thread restarts after a failure. It then needs a new socket on the same port, because uvicorn has closed
        # the first one.
        first_listener, self._listener = self._listener, None
        with first_listener or Listener(*self.address, variable=self._variable) as listener:
            config = make_config(self._app, listener, shutdown_seconds=self._shutdown_seconds)
            self._listener, self._server = listener, uvicorn.Server(config)
            if not self._is_ending:
                self._server.run(sockets=[listener])


def serve(server: uvicorn.Server, listener: Listener, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. Call `announce` as soon as signals are handled.

    uvicorn installs its own handlers while it runs. The handlers of this function are for signals before that, and for
    the signal that uvicorn raises again at its end, which would otherwise kill the process before the caller has
    cleaned up.
    """

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    announce()
    server.run(sockets=[listener])
