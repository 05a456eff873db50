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
from dsf.http.access import PLAIN, Access, proxy_for
from dsf.http.deadline import Exchange, running
from dsf.http.failures import NotHttpError
from dsf.text import place

#: Supported content codings. Only gzip is requested.
_CODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
#: Bytes of an error answer read for its message.
_REFUSAL_BYTES = 16 * 1024
_REDIRECTS = range(300, 400)
#: Exceptions of requests, urllib3, http.client and the operating system in an exchange.
_BROKEN = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    ValueError,
    OSError,
)


class Stream(Protocol):
    """A streamed request body: its length is known and it is read in pieces."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[memoryview]: ...


#: Called with each piece of a body.
Sink = Callable[[bytes], object]


class Answer(NamedTuple):
    """A response with any status that is not a redirect."""

    status: int
    body: bytes
    #: As the server sent it; empty when it sent none.
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

    `deadline` is a time of time.monotonic(), `access` has the credentials, `accept` the media types of the header
    Accept (by default JSON before any other), `explain` may read the reason of a refusal from its body, `sink` gets the
    body in pieces as they arrive, and the returned one is empty then. Raises what `sink` raises, and HttpError
    with one of the reasons connection_failed, address_refused, timeout, truncated, too_large, redirect, unauthorized,
    http_error, bad_answer, secret_invalid, or the one that `explain` gave.
    """
    ask = partial(_ClientRequest, url, deadline, max_bytes, params=params, accept=accept, explain=explain, sink=sink)
    return _renewed(ask, access, deadline)


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
    """Return the body of the response to a POST of `body`, decompressed. Arguments and errors as for `get`."""
    ask = partial(
        _ClientRequest,
        *(url, deadline, max_bytes),
        body=body,
        content_type=content_type,
        accept=accept,
        explain=explain,
        sink=sink,
    )
    return _renewed(ask, access, deadline)


def ask_for_token(
    url: str, body: bytes | None, *, deadline: float, max_bytes: int, access: Access, content_type: str
) -> Answer:
    """Return a token server's response with status 200 to a POST of `body`, or to a GET where it is None.

    No error quotes the response (dsf.http.failures.shown_token_answer). Arguments and errors as for `get`.
    """
    request = _ClientRequest(
        url, deadline, max_bytes, access, body=body, content_type=content_type, may_hold_token=True
    )
    return request.answer(_is_ok)


def probe(
    url: str,
    *,
    deadline: float,
    max_bytes: int,
    body: bytes | None = None,
    access: Access = PLAIN,
    is_for_keys: bool = False,
) -> Answer:
    """Return the response to a GET, or to a POST of `body`, for any status.

    `is_for_keys`: see dsf.http.deadline.Exchange.
    Over a new connection: a pooled one says nothing about health. Arguments and errors as for `get`, without
    those for a status; a redirect is still an error.
    """
    request = _ClientRequest(url, deadline, max_bytes, access, body=body)
    request.prepared.headers["Connection"] = "close"
    request.exchange.is_new = True
    request.exchange.is_for_keys = is_for_keys
    return request.answer(lambda status: status not in _REDIRECTS)


def _is_ok(status: int) -> bool:
    return status == HTTPStatus.OK


def _renewed(ask: Callable[[Access], _ClientRequest], access: Access, deadline: float) -> bytes:
    """Return the body of the response; if the server rejects a renewable token, that of one retry with a newer one."""
    try:
        return ask(access).answer(_is_ok).body
    except HttpError as error:
        if access.renew is None or not access.is_outdated(error):
            raise
        newer = access.renew(deadline)
        try:
            return ask(newer).answer(_is_ok).body
        except HttpError as again:
            if not newer.is_outdated(again):
                raise
            raise HttpError(
                "unauthorized",
                f"{again}; it was asked with a token that was got anew for it. Is the token for this server (audience, "
                "scopes), and is the server's clock right?",
                status=again.status,
            ) from None


class _ClientRequest:
    """A request, a GET or a POST of its body: state for all steps of the exchange."""

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
        """Arguments as for `get`; `may_hold_token` is what the response may do. Raises HttpError."""
        method, headers = ("GET", {}) if body is None else ("POST", {"Content-Type": content_type})
        if accept is not None:
            headers["Accept"] = accept
        self.where = place(method, url)
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
            # Always one: requests would look for a user in the URL.
            auth=access.signed,
        )
        try:
            if not url.lower().startswith(("http://", "https://")):
                raise ValueError
            self.prepared = transport.session.prepare_request(request)
        except (requests.RequestException, ValueError):
            raise HttpError("connection_failed", f"{self.where}: not a URL that can be asked") from None
        self.proxy = proxy_for(str(self.prepared.url), access)
        if self.proxy is not None:
            self.where += f" (through the proxy {self.proxy.shown})"

    def answer(self, is_wanted: Callable[[int], bool]) -> Answer:
        """Return the response. Raises HttpError, also for a status that is not wanted."""
        started = time.monotonic()
        if self.exchange.deadline <= started:
            raise HttpError("timeout", f"{self.where}: no time is left")
        try:
            with running(self.exchange), self._response() as response:
                status = response.status_code
                if not is_wanted(status):
                    raise self._refusal(response)
                return Answer(status, self._body(response), response.headers.get("Content-Type", ""))
        except _BROKEN as error:
            # from None: the library's text may hold the whole URL.
            if time.monotonic() >= self.exchange.deadline:
                raise failures.timeout(self.where, time.monotonic() - started) from None
            raise failures.broken(self.where, error, self.exchange.max_bytes) from None

    def _response(self) -> requests.Response:
        """Return the response. A request that fails on a kept connection without any response is repeated on a new one,
        once.

        The server, or something on the way there, may have given that connection up meanwhile.
        """
        if self.proxy is not None:
            addresses.check(str(self.prepared.url), self.exchange)
        try:
            return transport.send(self.prepared, self.proxy)
        except _BROKEN:
            if not self.exchange.may_repeat:
                raise
        self.exchange.is_new = True
        return transport.send(self.prepared, self.proxy)

    def _refusal(self, response: requests.Response) -> HttpError:
        head = b""
        # The status alone says enough.
        with contextlib.suppress(*_BROKEN, HttpError):
            for piece in self._pieces(response, _REFUSAL_BYTES):
                head += piece
                if len(head) >= _REFUSAL_BYTES:
                    break
        return failures.refusal(
            self.where,
            response.status_code,
            response.headers,
            head[:_REFUSAL_BYTES],
            self.access.secrets,
            self.explain,
            may_hold_token=self.may_hold_token,
        )

    def _body(self, response: requests.Response) -> bytes:
        max_bytes = self.exchange.max_bytes
        length = response.raw.length_remaining
        if length is not None and length > max_bytes:
            raise failures.too_large(self.where, max_bytes, f"has {length} bytes")
        pieces: list[bytes] = []
        take = self.sink or pieces.append
        total = 0
        # Without a sink, the first read gets all of a plain body of known length, without a second copy.
        size = length if length and self.sink is None else 1024 * 1024
        for piece in self._pieces(response, size):
            total += len(piece)
            if total > max_bytes:
                raise failures.too_large(self.where, max_bytes)
            # Decompression is not socket I/O.
            self.exchange.remaining()
            take(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _pieces(self, response: requests.Response, size: int) -> Iterator[bytes]:
        """The body, decompressed; in pieces of `size` bytes when it is not compressed."""
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding in ("", "identity"):
            return _raw(response, size)
        if encoding not in _CODINGS:
            raise HttpError(
                "bad_answer", f"{self.where}: the answer's Content-Encoding is one that was not asked for, send gzip"
            )
        return inflated(_raw(response, 64 * 1024))


def _raw(response: requests.Response, size: int) -> Iterator[bytes]:
    """The body as it came, without the framing of chunks."""
    try:
        yield from response.raw.stream(size, decode_content=False)
    except ValueError:
        # urllib3 takes a negative size for one.
        raise NotHttpError("a chunk of its body has no size") from None


def inflated(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The decompressed data, at most a MiB at a time; nothing for no pieces. Raises HTTPException.

    A few compressed bytes can expand a thousandfold, and a response can consist of many small compressed members, each
    of which costs a copy of the rest: so the output of each step is bounded, and the members are counted. Bytes after
    the last member are ignored, as gzip does.
    """
    # gzip or zlib, detected by the first bytes.
    either = 32 + zlib.MAX_WBITS
    inflater = zlib.decompressobj(either)
    members = 0
    is_begun = False
    for piece in pieces:
        is_begun = True
        rest = piece
        while rest:
            if inflater.eof:
                members += 1
                # Servers send one.
                if members >= 64:
                    raise NotHttpError("it is made of more than 64 compressed members")
                inflater = zlib.decompressobj(either)
            try:
                inflated_chunk = inflater.decompress(rest, 1024 * 1024)
            except zlib.error:
                if members:
                    return
                raise NotHttpError("it cannot be decompressed") from None
            rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            if inflated_chunk:
                yield inflated_chunk
    if is_begun and not inflater.eof:
        raise http.client.IncompleteRead(b"")
