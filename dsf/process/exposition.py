"""HTTP server for a process's /metrics and Kubernetes probes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from dsf.process import threads
from dsf.process.connections import BoundedServer, InThread, TimedHandler

_Start = Callable[..., Any]
#: Message of a failed check; empty if it passed.
Check = Callable[[], str]


class _ScrapeServer(BoundedServer, WSGIServer):
    """Few connections: there are few scrapers and probes."""


class _ScrapeHandler(TimedHandler, WSGIRequestHandler):
    #: Seconds for sending the answer.
    timeout = 10

    def handle(self) -> None:
        """Handle a request; ignore a client that sends none."""
        if self.await_request():
            super().handle()


class MetricsServer(InThread):
    """An HTTP server in a thread. The constructor binds the port and raises OSError if it is in use.

    `checks` are by path. Without them /healthz passes as long as the process serves, and /readyz as long as no thread
    fails again and again. A failed check is answered with 503 and its message.
    """

    def __init__(
        self, registry: CollectorRegistry, host: str, port: int, checks: Mapping[str, Check] | None = None
    ) -> None:
        metrics = make_wsgi_app(registry)
        pages = dict(checks or {"/healthz": lambda: "", "/readyz": threads.problem})
        help_text = f"not found; there are {', '.join(['/metrics', *pages])}\n"

        def application(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
            if environ["REQUEST_METHOD"] == "HEAD":
                answered(environ | {"REQUEST_METHOD": "GET"}, start)
                return []
            return answered(environ, start)

        def answered(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "")
            if path == "/metrics":
                answer: Iterable[bytes] = metrics(environ, start)
                return answer
            check = pages.get(path)
            if check is None:
                status, text = "404 Not Found", help_text
            else:
                wrong = check()
                status, text = ("503 Service Unavailable", f"{wrong}\n") if wrong else ("200 OK", "ok\n")
            body = text.encode()
            start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
            return [body]

        server = make_server(host, port, application, server_class=_ScrapeServer, handler_class=_ScrapeHandler)
        super().__init__(server, "dsf-metrics")
