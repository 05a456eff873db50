"""The HTTP server that a collector's `otlphttp` exporter pushes to.

`POST /v1/metrics`, protobuf or JSON, plain or gzip. Everything about a request is bounded: its bytes before and after
decompression, the time for it, the requests that are worked on at once, and the connections.
"""

from __future__ import annotations

import hmac
import json
import sys
import threading
import time
import zlib
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

import dsf.log
from dsf.sources.opentelemetry import OTLP_PATH
from dsf.sources.otlp.received import Received

log = dsf.log.get(__name__)

_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"
#: Connections at once; a collector has a few.
_CONNECTIONS: Final = 64
#: Requests in memory at once, and seconds that others wait for their turn.
_AT_ONCE: Final = 4
_WAIT: Final = 5.0
#: Seconds after which a sender that was turned away may come again.
_RETRY_AFTER: Final = 1
#: Seconds that a sender may be silent, and that the body of a request may take.
_SILENCE: Final = 30.0
_BODY: Final = 10.0
#: Seconds between two looks whether it shall stop.
_POLL: Final = 0.2
#: Bytes that are read at once.
_READ: Final = 64 * 1024
#: What gzip data is for zlib.
_GZIP: Final = 16 + zlib.MAX_WBITS


class _RefusalError(Exception):
    """The request is answered with this status and these words."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Receiver:
    """Listens in threads of its own. The port is taken in the constructor, which raises OSError when it is in use."""

    def __init__(
        self, received: Received, host: str, port: int, *, max_bytes: int, token_file: Path | None = None
    ) -> None:
        """`max_bytes` of a request, decompressed; `token_file` holds what senders must send as a Bearer token."""
        turns = threading.BoundedSemaphore(_AT_ONCE)

        class Handler(_Handler):
            endpoint = _Endpoint(received, max_bytes, token_file, turns)

        self._server = _Server((host, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL,), name="dsf-otlp", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer requests."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and give the port back."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(5)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._connections = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that went away is no event; anything else is a mistake of ours."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("OTLP request failed", error=repr(error))


class _Handler(BaseHTTPRequestHandler):
    endpoint: _Endpoint
    protocol_version = "HTTP/1.1"
    server_version = "dsf"
    sys_version = ""
    timeout = _SILENCE
    # Headers and body in one segment.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        as_json = self.headers.get_content_type() == _JSON
        try:
            body = self.endpoint.answer(self.path, self.headers, self._body)
        except _RefusalError as refusal:
            self._refuse(refusal, as_json=as_json)
            return
        self._send(HTTPStatus.OK, json_format.MessageToJson(body).encode() if as_json else body.SerializeToString())

    def do_GET(self) -> None:
        self._refuse(_RefusalError(HTTPStatus.METHOD_NOT_ALLOWED, f"metrics are pushed here: POST {OTLP_PATH}"))

    def log_message(self, *_: object) -> None:
        """Quiet: what is refused is counted."""

    def _body(self, limit: int) -> bytes:
        """The bytes as they were sent."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return self._chunks(limit)
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            raise _RefusalError(HTTPStatus.LENGTH_REQUIRED, "the request has no Content-Length")
        if len(length) > 15 or int(length) > limit:
            raise _too_large(limit)
        return self._read(int(length), time.monotonic() + _BODY)

    def _read(self, size: int, deadline: float) -> bytes:
        """So many bytes. A sender that drips must not keep its turn from others for long."""
        found = bytearray()
        while len(found) < size:
            self.connection.settimeout(max(deadline - time.monotonic(), 0.001))
            piece = self.rfile.read1(min(size - len(found), _READ))
            if not piece:
                raise _RefusalError(HTTPStatus.BAD_REQUEST, "the body is shorter than was said")
            found += piece
        self.connection.settimeout(_SILENCE)
        return bytes(found)

    def _chunks(self, limit: int) -> bytes:
        body = bytearray()
        deadline = time.monotonic() + _BODY
        while True:
            line = self.rfile.readline(100).partition(b";")[0].strip()
            try:
                size = int(line, 16)
            except ValueError:
                size = -1
            if size < 0:
                raise _RefusalError(HTTPStatus.BAD_REQUEST, "the chunks of the body cannot be read")
            if len(body) + size > limit:
                raise _too_large(limit)
            chunk = self._read(size, deadline)
            # Each chunk, the last and empty one too, is followed by an end of line; trailers are not taken.
            if self.rfile.readline(100).strip():
                raise _RefusalError(HTTPStatus.BAD_REQUEST, "the chunks of the body cannot be read")
            if not size:
                return bytes(body)
            body += chunk

    def _refuse(self, refusal: _RefusalError, *, as_json: bool = False) -> None:
        # The body may not have been read.
        self.close_connection = True
        if as_json:
            body = json.dumps({"code": _GRPC_INVALID, "message": refusal.message}).encode()
        else:
            body = _status(refusal.message)
        retry = refusal.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)
        self._send(refusal.status, body, {"Retry-After": str(_RETRY_AFTER)} if retry else {})

    def _send(self, status: HTTPStatus, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", _JSON if self.headers.get_content_type() == _JSON else _PROTOBUF)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


class _Endpoint:
    """From a request to the answer."""

    def __init__(
        self, received: Received, max_bytes: int, token_file: Path | None, turns: threading.BoundedSemaphore
    ) -> None:
        self._received = received
        self._max_bytes = max_bytes
        self._token_file = token_file
        self._turns = turns

    def answer(self, path: str, headers: Any, read: Callable[[int], bytes]) -> ExportMetricsServiceResponse:
        """Raises _RefusalError. `read` gives the body, of at most so many bytes."""
        if path.partition("?")[0].rstrip("/") != OTLP_PATH:
            raise _RefusalError(HTTPStatus.NOT_FOUND, f"only metrics are taken, at {OTLP_PATH}")
        self._check_token(headers.get("Authorization", ""))
        kind = headers.get_content_type()
        if kind not in (_PROTOBUF, _JSON):
            raise _RefusalError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {_PROTOBUF} or {_JSON}")
        encoding = headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip"):
            raise _RefusalError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding must be gzip or none")
        if not self._turns.acquire(timeout=_WAIT):
            raise _RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once")
        try:
            body = read(self._max_bytes)
            request = _parsed(self._unzipped(body) if encoding == "gzip" else body, as_json=kind == _JSON)
            rejected = self._received.take(request)
        finally:
            self._turns.release()
        answer = ExportMetricsServiceResponse()
        if rejected.points:
            answer.partial_success.CopyFrom(
                ExportMetricsPartialSuccess(rejected_data_points=rejected.points, error_message=rejected.message)
            )
        return answer

    def _check_token(self, authorization: str) -> None:
        if self._token_file is None:
            return
        try:
            # At each request, so that a new token needs no restart.
            token = self._token_file.read_bytes().strip()
        except OSError as error:
            log.error("cannot read the token of OTLP senders", file=str(self._token_file), problem=error.strerror)
            token = b""
        if not token:
            raise _RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, "this agent's token cannot be read")
        scheme, _, given = authorization.partition(" ")
        same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), token)
        if scheme.lower() != "bearer" or not same:
            raise _RefusalError(HTTPStatus.UNAUTHORIZED, "Authorization: Bearer <token> is missing or wrong")

    def _unzipped(self, body: bytes) -> bytes:
        inflater = zlib.decompressobj(_GZIP)
        try:
            found = inflater.decompress(body, self._max_bytes + 1)
        except zlib.error:
            raise _RefusalError(HTTPStatus.BAD_REQUEST, "the body is not gzip") from None
        if len(found) > self._max_bytes:
            raise _too_large(self._max_bytes)
        if not inflater.eof or inflater.unused_data:
            raise _RefusalError(HTTPStatus.BAD_REQUEST, "the body is not one whole gzip stream")
        return found


#: INVALID_ARGUMENT of gRPC, which is what the body of a refusal speaks.
_GRPC_INVALID: Final = 3


def _parsed(body: bytes, *, as_json: bool) -> ExportMetricsServiceRequest:
    try:
        if as_json:
            return json_format.Parse(body, ExportMetricsServiceRequest(), ignore_unknown_fields=True)
        return ExportMetricsServiceRequest.FromString(body)
    except (DecodeError, json_format.ParseError, ValueError, RecursionError) as error:
        kind = "JSON" if as_json else "protobuf"
        raise _RefusalError(HTTPStatus.BAD_REQUEST, f"not an OTLP request in {kind}: {str(error)[:200]}") from None


def _status(message: str) -> bytes:
    """A `google.rpc.Status`, as OTLP wants refusals: field 1 is the code, field 2 the message."""
    text = message.encode()[:1000]
    length = bytes([len(text)]) if len(text) < 128 else bytes([len(text) & 127 | 128, len(text) >> 7])
    return bytes([0x08, _GRPC_INVALID, 0x12]) + length + text


def _too_large(limit: int) -> _RefusalError:
    return _RefusalError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {limit} bytes; send smaller batches")
