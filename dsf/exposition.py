"""Serves a process's /metrics, and what Kubernetes' probes ask for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

_Start = Callable[..., Any]
#: What is wrong, for a person; empty when nothing is.
Check = Callable[[], str]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    #: Seconds; a client that sends nothing does not keep a thread.
    timeout = 10

    def log_message(self, *_: Any) -> None:
        """Quiet: probes and scrapes are no events."""


def _nothing_wrong() -> str:
    return ""


class Exposition:
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

        self._server = make_server(host, port, application, server_class=_Server, handler_class=_Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="dsf-metrics", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer requests."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and give the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
