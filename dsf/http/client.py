"""GET and POST of one document, within a deadline and a byte limit."""

from __future__ import annotations

import contextlib
import http.client
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol
from urllib.parse import urldefrag

import requests
import urllib3.exceptions

from dsf.errors import HttpError
from dsf.http import addresses, failures, transport
from dsf.http.access import PLAIN, Access, find_proxy
from dsf.http.deadline import Exchange, watch_exchange
from dsf.http.failures import NotHttpError
from dsf.text import describe_request

#: Supported content codings. Only gzip is requested.
_CODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
#: Maximum bytes read of the body of an error response, for its message.
_MAX_ERROR_BODY_BYTES: Final = 16 * 1024
#: Bytes per read of a body, and maximum bytes per step of its decompression.
_CHUNK_BYTES: Final = 1024 * 1024
#: Minimum bytes of a piece of a body that is passed on, except the last one. A server may send chunks of two bytes,
#: each of which would take 60 bytes of memory.
_MIN_PIECE_BYTES: Final = 64 * 1024
#: Bytes per read of a compressed body, which decompression expands.
_COMPRESSED_CHUNK_BYTES: Final = 64 * 1024
#: Maximum compressed members of a body. Real servers send one member; the limit bounds the number of copies.
_MAX_MEMBERS: Final = 64
#: Window size for zlib that detects gzip and zlib by the first bytes.
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS
_REDIRECT_STATUSES: Final = range(300, 400)
#: Exceptions that requests, urllib3, http.client and the operating system raise during an exchange.
_EXCHANGE_ERRORS: Final = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    ValueError,
    OSError,
)


class Stream(Protocol):
    """A streamed request body with a known length in bytes. Iteration yields it in pieces."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[memoryview]: ...


#: Called with each piece of a body.
Sink = Callable[[bytes], object]


class Response(NamedTuple):
    """A response to a request. The status is never that of a redirect."""

    status: int
    #: Decompressed body.
    body: bytes
    #: Unparsed Content-Type header; empty if the server sent none.
    content_type: str = ""


def get(
    url: str,
    *,
    deadline: float,
    max_bytes: int,
    params: Mapping[str, str | int] | None = None,
    access: Access = PLAIN,
    accept: str | None = None,
    explain: failures.Explain | None = None,
    sink: Sink | None = None,
) -> bytes:
    """Return the body of the response to a GET, decompressed.

    `deadline` is on the clock of time.monotonic(). `max_bytes` limits the decompressed body. `access` contains the
    credentials. `accept` is the Accept header, by default JSON before any other type. `explain` may derive a reason
    from the body of an error response. If `sink` is set, it is called with the pieces of the body as they arrive, and
    the returned body is empty.

    Raises the exceptions of `sink`, and HttpError with the reason connection_failed, address_refused, timeout,
    truncated, too_large, redirect, unauthorized, http_error, bad_answer, secret_invalid, or a reason of `explain`.
    """
    make_request = partial(
        _ClientRequest, url, deadline, max_bytes, params=params, accept=accept, explain=explain, sink=sink
    )
    return _send_with_renewal(make_request, access, deadline)


def post(
    url: str,
    body: bytes | Stream,
    *,
    deadline: float,
    max_bytes: int,
    access: Access = PLAIN,
    content_type: str = "application/json",
    accept: str | None = None,
    explain: failures.Explain | None = None,
    sink: Sink | None = None,
) -> bytes:
    """Return the body of the response to a POST of `body`, decompressed.

    Arguments and errors are the same as for `get`.
    """
    make_request = partial(
        _ClientRequest,
        *(url, deadline, max_bytes),
        body=body,
        content_type=content_type,
        accept=accept,
        explain=explain,
        sink=sink,
    )
    return _send_with_renewal(make_request, access, deadline)


def request_token(
    url: str, body: bytes | None, *, deadline: float, max_bytes: int, access: Access, content_type: str
) -> Response:
    """Return a token server's response with status 200 to a POST of `body`, or to a GET if `body` is None.

    Error texts never quote the response (dsf.http.failures.describe_token_response). Arguments and errors are the same
    as for `get`.
    """
    request = _ClientRequest(
        url, deadline, max_bytes, access, body=body, content_type=content_type, may_hold_token=True
    )
    return request.send(_is_ok)


def probe(
    url: str,
    *,
    deadline: float,
    max_bytes: int,
    body: bytes | None = None,
    access: Access = PLAIN,
    allows_link_local: bool = False,
) -> Response:
    """Return the response to a GET, or to a POST of `body`, for any status except redirects.

    Always uses a new connection, because a pooled connection does not prove that the server is healthy. See
    `dsf.http.deadline.Exchange` for `allows_link_local`. Other arguments and errors are the same as for `get`,
    but a redirect is the only status that raises HttpError.
    """
    request = _ClientRequest(url, deadline, max_bytes, access, body=body)
    request.prepared.headers["Connection"] = "close"
    request.exchange.needs_new_connection = True
    request.exchange.allows_link_local = allows_link_local
    return request.send(lambda status: status not in _REDIRECT_STATUSES)


def _is_ok(status: int) -> bool:
    return status == HTTPStatus.OK


def _send_with_renewal(make_request: Callable[[Access], _ClientRequest], access: Access, deadline: float) -> bytes:
    """Return the body of the response. Retries once with a renewed token if the server rejects a renewable token."""
    try:
        return make_request(access).send(_is_ok).body
    except HttpError as first_error:
        if access.renew is None or not access.is_outdated(first_error):
            raise
        renewed_access = access.renew(deadline)
        try:
            return make_request(renewed_access).send(_is_ok).body
        except HttpError as second_error:
            if not renewed_access.is_outdated(second_error):
                raise
            raise HttpError(
                "unauthorized",
                f"{second_error}; it was asked with a token that was got anew for it. Is the token for this server "
                "(audience, scopes), and is the server's clock right?",
                status=second_error.status,
            ) from None


class _ClientRequest:
    """Sends one GET or POST, and stores the state that the steps of its exchange share."""

    def __init__(
        self,
        url: str,
        deadline: float,
        max_bytes: int,
        access: Access,
        *,
        params: Mapping[str, str | int] | None = None,
        body: bytes | Stream | None = None,
        content_type: str = "application/json",
        accept: str | None = None,
        explain: failures.Explain | None = None,
        may_hold_token: bool = False,
        sink: Sink | None = None,
    ) -> None:
        """Prepare a POST of `body`, or a GET if `body` is None. Raises HttpError for an invalid URL or proxy.

        `may_hold_token` is True if the response may contain a token, so that no error quotes it. Other arguments are
        the same as for `get`.
        """
        method, headers = ("GET", {}) if body is None else ("POST", {"Content-Type": content_type})
        if accept is not None:
            headers["Accept"] = accept
        self.request_text = describe_request(method, url)
        self.access = access
        self.explain = explain
        self.sink = sink
        self.may_hold_token = may_hold_token
        self.exchange = Exchange(deadline, max_bytes, tls=access.tls)
        request = requests.Request(
            method,
            urldefrag(url)[0],
            headers=requests.structures.CaseInsensitiveDict({**headers, **dict(access.headers)}),
            params=[*(params or {}).items(), *access.params],
            data=body,
            # Always set auth, because requests otherwise takes credentials from the URL.
            auth=access.sign_request,
        )
        try:
            if not url.lower().startswith(("http://", "https://")):
                raise ValueError
            self.prepared = transport.session.prepare_request(request)
        except (requests.RequestException, ValueError):
            raise HttpError("connection_failed", f"{self.request_text}: not a URL that can be requested") from None
        self.proxy = find_proxy(str(self.prepared.url), access)
        if self.proxy is not None:
            self.request_text += f" (through the proxy {self.proxy.display_address})"

    def send(self, is_accepted: Callable[[int], bool]) -> Response:
        """Send the request, and return the response. Raises HttpError, also if `is_accepted` rejects the status."""
        started_at = time.monotonic()
        if self.exchange.deadline <= started_at:
            raise HttpError("timeout", f"{self.request_text}: no time is left")
        try:
            with watch_exchange(self.exchange), self._open_response() as response:
                status = response.status_code
                if not is_accepted(status):
                    raise self._make_status_error(response)
                return Response(status, self._read_body(response), response.headers.get("Content-Type", ""))
        except _EXCHANGE_ERRORS as error:
            # Raise "from None", because the library's text may contain the whole URL.
            if time.monotonic() >= self.exchange.deadline:
                raise failures.make_timeout_error(self.request_text, time.monotonic() - started_at) from None
            raise failures.make_exchange_error(self.request_text, error, self.exchange.max_bytes) from None

    def _open_response(self) -> requests.Response:
        """Return the response, whose body is not read yet.

        Repeats the request once on a new connection if it fails on a kept connection before the response begins,
        because the server or a middlebox may have closed that connection while it was idle.
        """
        if self.proxy is not None:
            addresses.check_proxied_url(str(self.prepared.url), self.exchange)
        try:
            return transport.send(self.prepared, self.proxy)
        except _EXCHANGE_ERRORS:
            if not self.exchange.may_repeat:
                raise
        self.exchange.needs_new_connection = True
        return transport.send(self.prepared, self.proxy)

    def _make_status_error(self, response: requests.Response) -> HttpError:
        body_start = b""
        # Report the status alone if the body cannot be read.
        with contextlib.suppress(*_EXCHANGE_ERRORS, HttpError):
            for piece in self._iterate_body(response, _MAX_ERROR_BODY_BYTES):
                body_start += piece
                if len(body_start) >= _MAX_ERROR_BODY_BYTES:
                    break
        return failures.make_status_error(
            self.request_text,
            response.status_code,
            response.headers,
            body_start[:_MAX_ERROR_BODY_BYTES],
            self.access.secrets,
            self.explain,
            may_hold_token=self.may_hold_token,
        )

    def _read_body(self, response: requests.Response) -> bytes:
        max_bytes = self.exchange.max_bytes
        length = response.raw.length_remaining
        if length is not None and length > max_bytes:
            raise failures.make_size_error(self.request_text, max_bytes, f"has {length} bytes")
        pieces: list[bytes] = []
        consume = self.sink or pieces.append
        total_bytes = 0
        # Without a sink, read an uncompressed body of known length at once, which saves a second copy of it.
        chunk_bytes = length if length and self.sink is None else _CHUNK_BYTES
        for piece in join_small_pieces(self._iterate_body(response, chunk_bytes)):
            total_bytes += len(piece)
            if total_bytes > max_bytes:
                raise failures.make_size_error(self.request_text, max_bytes)
            # Check the deadline here, because shutting down the socket does not interrupt decompression.
            self.exchange.require_remaining_seconds()
            consume(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _iterate_body(self, response: requests.Response, chunk_bytes: int) -> Iterator[bytes]:
        """Return an iterator over the decompressed body. `chunk_bytes` is the size of reads of an uncompressed body."""
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding in ("", "identity"):
            return _iterate_raw_body(response, chunk_bytes)
        if encoding not in _CODINGS:
            raise HttpError(
                "bad_answer",
                f"{self.request_text}: the response's Content-Encoding was not requested; have the server send gzip",
            )
        return decompress(_iterate_raw_body(response, _COMPRESSED_CHUNK_BYTES))


def _iterate_raw_body(response: requests.Response, chunk_bytes: int) -> Iterator[bytes]:
    """Yield the body before decompression, without the framing of HTTP chunks."""
    try:
        yield from response.raw.stream(chunk_bytes, decode_content=False)
    except ValueError:
        # urllib3 accepts a negative chunk size, and reading it raises ValueError.
        raise NotHttpError("a chunk of its body has no size") from None


def join_small_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same data in pieces of at least `_MIN_PIECE_BYTES`, except the last one."""
    waiting_bytes = bytearray()
    for piece in pieces:
        if not waiting_bytes and len(piece) >= _MIN_PIECE_BYTES:
            yield piece
            continue
        waiting_bytes += piece
        if len(waiting_bytes) >= _MIN_PIECE_BYTES:
            yield bytes(waiting_bytes)
            waiting_bytes.clear()
    if waiting_bytes:
        yield bytes(waiting_bytes)


def decompress(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the decompressed data in chunks of at most `_CHUNK_BYTES`, and nothing if there are no pieces.

    The output of each step is bounded, because a few compressed bytes can expand a thousandfold. The number of
    compressed members is limited, because each member costs a copy of the remaining bytes. Bytes after the last member
    are ignored, as gzip does. Raises HTTPException for invalid or incomplete data.
    """
    decompressor = zlib.decompressobj(_GZIP_OR_ZLIB)
    finished_members = 0
    has_data = False
    for piece in pieces:
        has_data = True
        remaining_bytes = piece
        while remaining_bytes:
            if decompressor.eof:
                finished_members += 1
                if finished_members >= _MAX_MEMBERS:
                    raise NotHttpError(f"it is made of more than {_MAX_MEMBERS} compressed members")
                decompressor = zlib.decompressobj(_GZIP_OR_ZLIB)
            try:
                chunk = decompressor.decompress(remaining_bytes, _CHUNK_BYTES)
            except zlib.error:
                if finished_members:
                    return
                raise NotHttpError("it cannot be decompressed") from None
            remaining_bytes = decompressor.unused_data if decompressor.eof else decompressor.unconsumed_tail
            if chunk:
                yield chunk
    if has_data and not decompressor.eof:
        raise http.client.IncompleteRead(b"")
