"""HTTP server for a process's /metrics and Kubernetes probes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from dsf.connections import BoundedServer, InThread, TimedHandler

_Start = Callable[..., Any]
#: What is wrong, for a person; empty when nothing is.
Check = Callable[[], str]


class _Server(BoundedServer, WSGIServer):
    """Scrapers and probes are a few."""


class _Handler(TimedHandler, WSGIRequestHandler):
    #: Seconds for the answer to go out.
    timeout = 10

    def handle(self) -> None:
        """As it was, and nothing for a client that says nothing."""
        if self.await_request():
            super().handle()


def _nothing_wrong() -> str:
    return ""


class Exposition(InThread):
    """An HTTP server in a thread. The port is taken in the constructor, which raises OSError when it is in use.

    `checks` are by path; the default is one that the process passes as long as it serves. A path whose check finds
    something wrong is answered with 503 and what it is.
    """

    def __init__(
        self, registry: CollectorRegistry, host: str, port: int, checks: Mapping[str, Check] | None = None
    ) -> None:
        metrics = make_wsgi_app(registry)
        pages = dict(checks or {"/healthz": _nothing_wrong})
        help_text = f"not found; there are {', '.join(['/metrics', *pages])}\n"

        def application(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
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

        server = make_server(host, port, application, server_class=_Server, handler_class=_Handler)
        super().__init__(server, "dsf-metrics")
