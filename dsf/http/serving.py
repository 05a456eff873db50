"""How every HTTP service of the framework serves and ends: uvicorn by its documented options, on a socket of
`listening`."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import uvicorn

from dsf.http.listening import MOST_CONNECTIONS, Listener, Progress
from dsf.process.threads import SupervisedThread

#: Seconds for which an idle connection stays open: longer than balancers keep theirs, of which Google's wait longest
#: (600 s). A connection that the server closes first costs a client of the balancer a 502. An open idle connection
#: costs nothing: it is the first to be closed for a new one.
IDLE_SECONDS: Final = 620
#: Bytes of a request's header, however it arrives. Proxies with single sign-on send cookies of 20 kB.
HEAD_BYTES: Final = 64 * 1024


def configured(app: Any, listener: Listener, *, shutdown_seconds: int) -> uvicorn.Config:
    """How to serve an ASGI application on this socket: within its limits, and without a log of its own."""
    return uvicorn.Config(
        Progress(app, listener),
        # Keep the framework's logging; a line for each scrape and probe would be noise.
        log_config=None,
        log_level="warning",
        access_log=False,
        loop="asyncio",
        http="h11",
        ws="none",
        interface="asgi3",
        # The page itself decides whose forwarded headers count; nothing else reads any.
        proxy_headers=False,
        server_header=False,
        # Far above the places of the listener: requests whose connection was closed count until they have ended.
        limit_concurrency=16 * MOST_CONNECTIONS,
        timeout_keep_alive=IDLE_SECONDS,
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_graceful_shutdown=shutdown_seconds,
    )


class HttpServer:
    """Serves an ASGI application in a thread with an event loop of its own. Start it once, stop it once."""

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
        """`variable` is the setting of the port, for errors."""
        self._app = app
        #: Host and port on which it listens, once started.
        self.address = host, port
        self.name = name
        self._shutdown_seconds = shutdown_seconds
        self._variable = variable
        self._server: uvicorn.Server | None = None
        self._listener: Listener | None = None
        self._is_ending = False
        self._thread = SupervisedThread(self._run, name)

    def start(self) -> None:
        """Listen, and serve. Raises SettingsError when the address cannot be bound."""
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

    def problem(self) -> str:
        """Why it does not serve; empty while it does."""
        is_serving = self._listener is None or self._is_ending or self._thread.is_alive()
        return "" if is_serving else f"the server of {self.name} has ended"

    def _run(self) -> None:
        # After a failure on the same port, whose socket uvicorn has closed.
        listener, self._listener = self._listener, None
        with listener or Listener(*self.address, variable=self._variable) as listening:
            config = configured(self._app, listening, shutdown_seconds=self._shutdown_seconds)
            self._listener, self._server = listening, uvicorn.Server(config)
            if not self._is_ending:
                self._server.run(sockets=[listening])


def serve(server: uvicorn.Server, listener: Listener, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. `announce` says that the service listens: from then on signals are obeyed.

    The server has its own handlers while it runs. The handlers of this function handle a signal before that, and the
    one that it raises again at its end, which would otherwise kill the process before its caller could clean up.
    """

    def end(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    announce()
    server.run(sockets=[listener])
