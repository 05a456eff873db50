"""A receiver of traces: OTLP over HTTP, parsed with the protocol's own classes."""

from __future__ import annotations

import gzip
import http.server
import threading
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """A server of OTLP over HTTP; `spans` are the received ones, each with the name of its service."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self.raw = b""
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        """Store the spans of one request."""
        assert path == "/v1/traces"
        self.raw += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(attributes["service.name"], span) for span in scope.spans]

    def list_spans(self, trace: str) -> list[tuple[str, Any]]:
        """Return the spans of one trace."""
        return [(service, span) for service, span in list(self.spans) if span.trace_id.hex() == trace]

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
