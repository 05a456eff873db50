"""The HTTP server that a collector's `otlphttp` exporter pushes to.

`POST /v1/metrics`, protobuf or JSON, plain or gzip. The limits of a request are its bytes before and after
decompression and its time. The number of concurrent requests and of connections is limited too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import threading
import zlib
from collections.abc import AsyncIterator, Mapping, MutableMapping
from http import HTTPStatus
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
from dsf.errors import AccessError, JsonBoundsError, SettingsError
from dsf.http.listening import Receive, Send, find_ambiguity
from dsf.http.serving import HttpServer
from dsf.otlp import protobufbounds
from dsf.otlp.points import TooManyAttributesError
from dsf.otlp.received import Received
from dsf.process.clienttoken import TokenFile
from dsf.sources.base import OTLP_PATH

log = dsf.log.get(__name__)

_PROTOBUF: Final = "application/x-protobuf"
_JSON: Final = "application/json"
#: Maximum requests that are parsed at a time, and seconds that others wait.
_MAX_PARALLEL_REQUESTS: Final = 4
#: Maximum bytes of all bodies being received, in bodies of the maximum size.
_MAX_BODIES: Final = 4
_MAX_WAIT_SECONDS: Final = 5.0
#: Retry-After in seconds for a refused sender.
_RETRY_AFTER_SECONDS: Final = 1
#: Seconds in which a request body must arrive.
_BODY_SECONDS: Final = 10.0
#: zlib's wbits for gzip.
_GZIP: Final = 16 + zlib.MAX_WBITS

_Scope = MutableMapping[str, Any]


class _RefusalError(Exception):
    """A refused request. The response has this status and text."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class _ClientLeftError(Exception):
    """The sender closed the connection before its request was complete."""


class _Body:
    """A body that is being received, until its deadline, or that waits to be parsed."""

    def __init__(self, deadline: asyncio.Timeout) -> None:
        self.data = bytearray()
        self.deadline = deadline
        self.is_whole = False
        self.is_dropped = False


class Receiver(HttpServer):
    """The receiver's server, which runs in a separate thread."""

    def __init__(
        self, received: Received, host: str, port: int, *, max_bytes: int, token_file: Path | None = None
    ) -> None:
        """Prepare the server.

        A request has at most `max_bytes` after decompression. Senders need the Bearer token in `token_file`.
        """
        endpoint = _Endpoint(received, max_bytes, token_file)
        super().__init__(endpoint, host, port, name="dsf-otlp", variable="DSF_OTLP_PORT")


class _Endpoint:
    """The ASGI application."""

    def __init__(self, received: Received, max_bytes: int, token_file: Path | None) -> None:
        self._received = received
        self._max_bytes = max_bytes
        self._token_file = TokenFile(token_file) if token_file else None
        self._semaphore = asyncio.Semaphore(_MAX_PARALLEL_REQUESTS)
        #: Received bodies, the oldest first.
        self._bodies: dict[_Body, None] = {}
        self._parse_lock = threading.Lock()

    async def __call__(self, scope: _Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        as_json = _get_content_type(headers) == _JSON
        further_headers = {"Content-Type": _JSON if as_json else _PROTOBUF}
        try:
            response = await self._handle_request(scope, headers, receive)
        except _ClientLeftError:
            return
        except _RefusalError as refusal:
            status = refusal.status
            error = {"code": _GRPC_INVALID, "message": refusal.message}
            body = json.dumps(error).encode() if as_json else _encode_status(refusal.message)
            # The body may be unread, so the connection cannot be reused.
            further_headers["Connection"] = "close"
            if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
                further_headers["Retry-After"] = str(_RETRY_AFTER_SECONDS)
        else:
            status = HTTPStatus.OK
            body = json_format.MessageToJson(response).encode() if as_json else response.SerializeToString()
        further_headers["Content-Length"] = str(len(body))
        encoded_headers = [(name.encode(), value.encode()) for name, value in further_headers.items()]
        await send({"type": "http.response.start", "status": int(status), "headers": encoded_headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _handle_request(
        self, scope: _Scope, headers: Mapping[str, str], receive: Receive
    ) -> ExportMetricsServiceResponse:
        """Ingest the points of a request. Raises _RefusalError and _ClientLeftError."""
        if scope["method"] != "POST":
            raise _RefusalError(HTTPStatus.METHOD_NOT_ALLOWED, f"metrics are pushed here: POST {OTLP_PATH}")
        if ambiguity := find_ambiguity(name.decode("latin-1") for name, _ in scope["headers"]):
            raise _RefusalError(HTTPStatus.BAD_REQUEST, ambiguity)
        if str(scope["path"]).rstrip("/") != OTLP_PATH:
            raise _RefusalError(HTTPStatus.NOT_FOUND, f"only metrics are taken, at {OTLP_PATH}")
        self._check_token(headers.get("authorization", ""), scope["client"][0])
        kind = _get_content_type(headers)
        if kind not in (_PROTOBUF, _JSON):
            raise _RefusalError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Type must be {_PROTOBUF} or {_JSON}")
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip"):
            raise _RefusalError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding must be gzip or none")
        # The body is received before the request counts as running, so that senders of slow bodies do not block others.
        async with self._receive_body(headers, receive) as body, self._limit_concurrency():
            return await asyncio.to_thread(self._ingest, body, is_gzip=encoding == "gzip", as_json=kind == _JSON)

    @contextlib.asynccontextmanager
    async def _limit_concurrency(self) -> AsyncIterator[None]:
        """Wait until fewer requests are in memory. Raises _RefusalError."""
        try:
            async with asyncio.timeout(_MAX_WAIT_SECONDS):
                await self._semaphore.acquire()
        except TimeoutError:
            raise _make_too_many_error() from None
        try:
            yield
        finally:
            self._semaphore.release()

    @contextlib.asynccontextmanager
    async def _receive_body(self, headers: Mapping[str, str], receive: Receive) -> AsyncIterator[bytes]:
        """Receive the bytes as sent. Raises _RefusalError and _ClientLeftError."""
        length = headers.get("content-length", "")
        if "transfer-encoding" not in headers and not length:
            raise _RefusalError(HTTPStatus.LENGTH_REQUIRED, "the request has no Content-Length")
        if length and int(length) > self._max_bytes:
            raise _make_too_large_error(self._max_bytes)
        body = _Body(asyncio.timeout(_BODY_SECONDS))
        self._bodies[body] = None
        try:
            await self._receive(body, receive)
            yield bytes(body.data)
        finally:
            self._bodies.pop(body, None)

    async def _receive(self, body: _Body, receive: Receive) -> None:
        try:
            async with body.deadline:
                while not body.is_whole:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientLeftError
                    self._add(body, message.get("body", b""))
                    body.is_whole = not message.get("more_body", False)
        except TimeoutError:
            if body.is_dropped:
                raise _make_too_many_error() from None
            raise _RefusalError(
                HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {_BODY_SECONDS:g} s"
            ) from None

    def _add(self, body: _Body, piece: bytes) -> None:
        """Add a piece to a body.

        If all bodies together have too many bytes, the oldest incomplete body is dropped, because good senders send
        their body at once. Raises _RefusalError.
        """
        body.data += piece
        if len(body.data) > self._max_bytes:
            raise _make_too_large_error(self._max_bytes)
        while sum(len(received_body.data) for received_body in self._bodies) > _MAX_BODIES * self._max_bytes:
            oldest_body = next(received_body for received_body in self._bodies if not received_body.is_whole)
            del self._bodies[oldest_body]
            if oldest_body is body:
                raise _make_too_many_error()
            oldest_body.data.clear()
            oldest_body.is_dropped = True
            if not oldest_body.deadline.expired():
                oldest_body.deadline.reschedule(asyncio.get_running_loop().time())

    def _ingest(self, body: bytes, *, is_gzip: bool, as_json: bool) -> ExportMetricsServiceResponse:
        """Decompress and parse a body, and store its points. Raises _RefusalError."""
        plain = self._unzip(body) if is_gzip else body
        if as_json and len(plain) > self._max_bytes // _JSON_SHARE:
            raise _make_too_large_error(self._max_bytes // _JSON_SHARE)
        # Parse one body at a time, because a parsed body takes several times as much memory, and in Python two at a
        # time are no faster.
        with self._parse_lock:
            request = _parse_request(plain, as_json=as_json)
            try:
                rejections = self._received.ingest(request)
            except TooManyAttributesError as error:
                raise _RefusalError(HTTPStatus.BAD_REQUEST, str(error)) from None
        response = ExportMetricsServiceResponse()
        if rejections.points:
            response.partial_success.CopyFrom(
                ExportMetricsPartialSuccess(rejected_data_points=rejections.points, error_message=rejections.message)
            )
        return response

    def _check_token(self, authorization: str, client: str) -> None:
        if self._token_file is None:
            return
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise _RefusalError(HTTPStatus.UNAUTHORIZED, "Authorization: Bearer <token> is missing")
        try:
            # Headers are text in latin-1.
            self._token_file.check(token.strip().encode("latin-1", "replace").decode(errors="replace"), client)
        except AccessError as error:
            raise _RefusalError(HTTPStatus(error.status), str(error)) from None
        except SettingsError as error:
            log.error("cannot use the token of OTLP senders", problem=str(error))
            raise _RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, "this agent's token cannot be used") from None

    def _unzip(self, body: bytes) -> bytes:
        inflater = zlib.decompressobj(_GZIP)
        try:
            plain = inflater.decompress(body, self._max_bytes + 1)
        except zlib.error:
            raise _RefusalError(HTTPStatus.BAD_REQUEST, "the body is not gzip") from None
        if len(plain) > self._max_bytes:
            raise _make_too_large_error(self._max_bytes)
        if not inflater.eof or inflater.unused_data:
            raise _RefusalError(HTTPStatus.BAD_REQUEST, "the body is not one whole gzip stream")
        return plain


#: gRPC's INVALID_ARGUMENT, for the body of an error response.
_GRPC_INVALID: Final = 3


#: A JSON request may have `max_bytes` divided by this, because it takes more memory and time than protobuf.
_JSON_SHARE: Final = 4
#: Starts of objects and arrays in JSON, which take far more memory than their text. A real request has at most one of
#: them in `_BYTES_TO_A_PART` bytes.
_JSON_PART_PATTERN: Final = re.compile(rb"[\[{]")
_BYTES_TO_A_PART: Final = 8
_FEW_PARTS: Final = 10_000


def _parse_request(body: bytes, *, as_json: bool) -> ExportMetricsServiceRequest:
    kind = "JSON" if as_json else "protobuf"
    try:
        if as_json:
            _check_parts(body)
            return json_format.Parse(body, ExportMetricsServiceRequest(), ignore_unknown_fields=True)
        protobufbounds.check(body)
        return ExportMetricsServiceRequest.FromString(body)
    except (DecodeError, json_format.ParseError, ValueError, RecursionError) as error:
        raise _RefusalError(HTTPStatus.BAD_REQUEST, f"not an OTLP request in {kind}: {str(error)[:200]}") from None


def _check_parts(body: bytes) -> None:
    """Raise JsonBoundsError if JSON has too many objects and arrays for its size."""
    max_parts = _FEW_PARTS + len(body) // _BYTES_TO_A_PART
    if next(itertools.islice(_JSON_PART_PATTERN.finditer(body), max_parts, None), None) is not None:
        raise JsonBoundsError("it has too many nearly empty parts for its size")


def _get_content_type(headers: Mapping[str, str]) -> str:
    """Return the media type without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _encode_status(message: str) -> bytes:
    """Return a `google.rpc.Status`, OTLP's error response: field 1 is the code, field 2 the message."""
    text = message.encode()[:1000]
    length = bytes([len(text)]) if len(text) < 128 else bytes([len(text) & 127 | 128, len(text) >> 7])
    return bytes([0x08, _GRPC_INVALID, 0x12]) + length + text


def _make_too_many_error() -> _RefusalError:
    return _RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once")


def _make_too_large_error(limit: int) -> _RefusalError:
    return _RefusalError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {limit} bytes; send smaller batches")
