"""The HTTP server that a collector's `otlphttp` exporter pushes to.

`POST /v1/metrics`, protobuf or JSON, plain or gzip. Everything about a request is bounded: its bytes before and after
decompression, its time, the number of concurrent requests, and the connections.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import zlib
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
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
from dsf.errors import AccessError, SettingsError
from dsf.otlp.received import Received
from dsf.process.clienttoken import TokenFile
from dsf.process.connections import BoundedServer, InThread, TimedHandler
from dsf.sources.base import OTLP_PATH

log = dsf.log.get(__name__)

_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"
#: Open connections; a collector has a few.
_CONNECTIONS: Final = 64
#: Concurrent requests in memory, and seconds that others wait.
_AT_ONCE: Final = 4
_WAIT: Final = 5.0
#: Retry-After in seconds for a refused sender.
_RETRY_AFTER: Final = 1
#: Seconds that a sender may be silent, and that a request body may take.
_SILENCE: Final = 30.0
_BODY: Final = 10.0
#: A chunk header: the size, and optional extensions; its maximum.
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?\r?\n")
_LINE: Final = 100
#: Bytes per read.
_READ: Final = 64 * 1024
#: zlib's wbits for gzip.
_GZIP: Final = 16 + zlib.MAX_WBITS


class _RefusalError(Exception):
    """The request is answered with this status and text."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Receiver(InThread):
    """Listens in separate threads. The port is bound in the constructor, which raises OSError when it is in use."""

    def __init__(
        self, received: Received, host: str, port: int, *, max_bytes: int, token_file: Path | None = None
    ) -> None:
        """`max_bytes` of a request, decompressed; `token_file` holds the Bearer token that senders need."""
        turns = threading.BoundedSemaphore(_AT_ONCE)

        class Handler(_ExportHandler):
            endpoint = _Endpoint(received, max_bytes, token_file, turns)

        super().__init__(_OtlpServer((host, port), Handler), "dsf-otlp")


class _OtlpServer(BoundedServer, HTTPServer):
    places = _CONNECTIONS


class _ExportHandler(TimedHandler, BaseHTTPRequestHandler):
    endpoint: _Endpoint
    protocol_version = "HTTP/1.1"
    server_version = "dsf"
    sys_version = ""
    timeout = silence = _SILENCE
    # Headers and body in one segment.
    wbufsize = -1
    disable_nagle_algorithm = True

    def handle_one_request(self) -> None:
        """See the base class; also limits the time for the header."""
        if self.await_request():
            super().handle_one_request()
        else:
            self.close_connection = True

    def handle_expect_100(self) -> bool:
        """Answers at once: the sender waits for it, and what is written waits for the end of a request."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def do_POST(self) -> None:
        as_json = self.headers.get_content_type() == _JSON
        try:
            body = self.endpoint.answer(self.path, self.headers, self.client_address[0], self._body, self._admitted)
        except _RefusalError as refusal:
            self._refuse(refusal, as_json=as_json)
            return
        self._send(HTTPStatus.OK, json_format.MessageToJson(body).encode() if as_json else body.SerializeToString())

    def do_GET(self) -> None:
        self._refuse(_RefusalError(HTTPStatus.METHOD_NOT_ALLOWED, f"metrics are pushed here: POST {OTLP_PATH}"))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _admitted(self) -> None:
        server: Any = self.server
        server.is_known(self.connection)

    def _body(self, limit: int) -> bytes:
        """The bytes as sent. A slow sender must not block others for long."""
        self.timed.allow(_BODY)
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return self._chunks(limit)
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            raise _RefusalError(HTTPStatus.LENGTH_REQUIRED, "the request has no Content-Length")
        if len(length) > 15 or int(length) > limit:
            raise _too_large(limit)
        return self._read(int(length))

    def _read(self, size: int) -> bytes:
        """`size` bytes, allocated as they arrive, not by announced length."""
        data = bytearray()
        while len(data) < size:
            piece = self.rfile.read(min(size - len(data), _READ))
            if not piece:
                raise _RefusalError(HTTPStatus.BAD_REQUEST, "the body is shorter than was said")
            data += piece
        return bytes(data)

    def _chunks(self, limit: int) -> bytes:
        body = bytearray()
        while True:
            match = _CHUNK.fullmatch(self.rfile.readline(_LINE))
            if match is None:
                raise _RefusalError(HTTPStatus.BAD_REQUEST, "the chunks of the body cannot be read")
            size = int(match[1], 16)
            if len(body) + size > limit:
                raise _too_large(limit)
            chunk = self._read(size)
            # Each chunk, including the last and empty one, ends with a line break; trailers are refused.
            if self.rfile.readline(_LINE).strip():
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
        if self.command != "HEAD":
            self.wfile.write(body)


class _Endpoint:
    """Handles one request."""

    def __init__(
        self, received: Received, max_bytes: int, token_file: Path | None, turns: threading.BoundedSemaphore
    ) -> None:
        self._received = received
        self._max_bytes = max_bytes
        self._token_file = TokenFile(token_file) if token_file else None
        self._turns = turns
        self._parsing = threading.Lock()

    def answer(
        self, path: str, headers: Any, client: str, read: Callable[[int], bytes], admitted: Callable[[], None]
    ) -> ExportMetricsServiceResponse:
        """Raises _RefusalError. `read` returns the body, up to a number of bytes; `admitted` is called for an
        authorised sender."""
        if path.partition("?")[0].rstrip("/") != OTLP_PATH:
            raise _RefusalError(HTTPStatus.NOT_FOUND, f"only metrics are taken, at {OTLP_PATH}")
        self._check_token(headers.get("Authorization", ""), client)
        admitted()
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
            body = self._unzipped(body) if encoding == "gzip" else body
            # The lock admits one at a time: parsed, it is several times as large, and Python is not faster with two.
            with self._parsing:
                rejected = self._received.take(_parsed(body, as_json=kind == _JSON))
        finally:
            self._turns.release()
        answer = ExportMetricsServiceResponse()
        if rejected.points:
            answer.partial_success.CopyFrom(
                ExportMetricsPartialSuccess(rejected_data_points=rejected.points, error_message=rejected.message)
            )
        return answer

    def _check_token(self, authorization: str, client: str) -> None:
        if self._token_file is None:
            return
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise _RefusalError(HTTPStatus.UNAUTHORIZED, "Authorization: Bearer <token> is missing")
        try:
            # Headers are latin-1 text.
            self._token_file.check(token.strip().encode("latin-1", "replace").decode(errors="replace"), client)
        except AccessError as error:
            raise _RefusalError(HTTPStatus(error.status), str(error)) from None
        except SettingsError as error:
            log.error("cannot use the token of OTLP senders", problem=str(error))
            raise _RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, "this agent's token cannot be used") from None

    def _unzipped(self, body: bytes) -> bytes:
        inflater = zlib.decompressobj(_GZIP)
        try:
            plain = inflater.decompress(body, self._max_bytes + 1)
        except zlib.error:
            raise _RefusalError(HTTPStatus.BAD_REQUEST, "the body is not gzip") from None
        if len(plain) > self._max_bytes:
            raise _too_large(self._max_bytes)
        if not inflater.eof or inflater.unused_data:
            raise _RefusalError(HTTPStatus.BAD_REQUEST, "the body is not one whole gzip stream")
        return plain


#: gRPC's INVALID_ARGUMENT, for the body of an error response.
_GRPC_INVALID: Final = 3


#: Start of parts that need far more memory than bytes: empty messages of protobuf (a field of up to 15 with the length
#: 0), objects and arrays of JSON. A real request has fewer than one per this many bytes.
_PARTS: Final = re.compile(rb"[\x0a\x12\x1a\x22\x2a\x32\x3a\x42\x4a\x52\x5a\x62\x6a\x72\x7a]\x00")
_PARTS_JSON: Final = re.compile(rb"[\[{]")
_BYTES_TO_A_PART: Final = 8
_FEW_PARTS: Final = 10_000


def _parsed(body: bytes, *, as_json: bool) -> ExportMetricsServiceRequest:
    max_parts = _FEW_PARTS + len(body) // _BYTES_TO_A_PART
    parts = (_PARTS_JSON if as_json else _PARTS).finditer(body)
    if next(itertools.islice(parts, max_parts, None), None) is not None:
        raise _RefusalError(
            HTTPStatus.BAD_REQUEST, f"the request has more than {max_parts} parts that are nearly empty"
        )
    try:
        if as_json:
            return json_format.Parse(body, ExportMetricsServiceRequest(), ignore_unknown_fields=True)
        return ExportMetricsServiceRequest.FromString(body)
    except (DecodeError, json_format.ParseError, ValueError, RecursionError) as error:
        kind = "JSON" if as_json else "protobuf"
        raise _RefusalError(HTTPStatus.BAD_REQUEST, f"not an OTLP request in {kind}: {str(error)[:200]}") from None


def _status(message: str) -> bytes:
    """A `google.rpc.Status`, OTLP's error response: field 1 is the code, field 2 the message."""
    text = message.encode()[:1000]
    length = bytes([len(text)]) if len(text) < 128 else bytes([len(text) & 127 | 128, len(text) >> 7])
    return bytes([0x08, _GRPC_INVALID, 0x12]) + length + text


def _too_large(limit: int) -> _RefusalError:
    return _RefusalError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {limit} bytes; send smaller batches")
