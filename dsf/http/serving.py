"""Configuration, start and stop of the HTTP services, with uvicorn on a socket of `listening`."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import uvicorn

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


def make_config(app: Any, listener: Listener, *, shutdown_seconds: int) -> uvicorn.Config:
    """Return the configuration to serve an ASGI application on the listener, without uvicorn's logs.

    After `shutdown_seconds` uvicorn cancels the requests that are still open at its end.
    """
    return uvicorn.Config(
        Progress(app, listener),
        # Keep the framework's logging, and write no line for each scrape and probe.
        log_config=None,
        log_level="warning",
        access_log=False,
        loop="asyncio",
        http="h11",
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
