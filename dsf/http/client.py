"""GET and POST of one document, within a deadline and a byte limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol
from urllib.parse import urldefrag

import requests
import urllib3.exceptions

from dsf.errors import HttpError
from dsf.http import addresses, coding, failures, proxies, transport
from dsf.http.access import PLAIN, Access
from dsf.http.answer import NotHttpError
from dsf.http.deadline import Exchange, running

#: Bytes per read of an answer of unknown length or with compression.
_READ_BYTES = 1024 * 1024
_READ_COMPRESSED = 64 * 1024
#: Bytes of an error answer read for its message.
_REFUSAL_BYTES = 16 * 1024
_OK = 200
_REDIRECTS = range(300, 400)


class Stream(Protocol):
    """A streamed request body: its length is known and it is read in pieces."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[memoryview]: ...


class Answer(NamedTuple):
    """An answer with any status that is not a redirect."""

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
    explain: failures.Explain | None = None,
) -> bytes:
    """The body of the answer to a GET, decompressed.

    `deadline` is a time of time.monotonic(), `access` has the credentials, `explain` may read the reason of a
    refusal from its body. Raises HttpError with one of the reasons connection_failed, address_refused, timeout,
    truncated, too_large, redirect, unauthorized, http_error, bad_answer, secret_invalid, or the one that `explain`
    gave.
    """

    def send(access: Access) -> bytes:
        return _Request("GET", url, deadline, max_bytes, access, params=params, explain=explain).good().body

    return _renewed(send, access, deadline)


def post(
    url: str,
    body: bytes | Stream,
    *,
    deadline: float,
    max_bytes: int,
    access: Access = PLAIN,
    content_type: str = "application/json",
    explain: failures.Explain | None = None,
) -> bytes:
    """The body of the answer to a POST of `body`, decompressed. Arguments and errors as for `get`."""

    def send(access: Access) -> bytes:
        headers = {"Content-Type": content_type}
        request = _Request("POST", url, deadline, max_bytes, access, headers=headers, body=body, explain=explain)
        return request.good().body

    return _renewed(send, access, deadline)


def ask_for_token(
    url: str, body: bytes | None, *, deadline: float, max_bytes: int, access: Access, content_type: str
) -> Answer:
    """A token server's answer with status 200 to a POST of `body`, or to a GET where it is None.

    No error quotes the answer (dsf.http.tokenanswer). Arguments and errors as for `get`.
    """
    method, headers = ("GET", {}) if body is None else ("POST", {"Content-Type": content_type})
    request = _Request(method, url, deadline, max_bytes, access, headers=headers, body=body, may_hold_token=True)
    return request.good()


def _renewed(send: Callable[[Access], bytes], access: Access, deadline: float) -> bytes:
    """The answer; if the server rejects a renewable token, that of one retry with a newer one."""
    try:
        return send(access)
    except HttpError as error:
        if access.renew is None or not access.is_outdated(error):
            raise
        newer = access.renew(deadline)
        try:
            return send(newer)
        except HttpError as again:
            if not newer.is_outdated(again):
                raise
            raise HttpError(
                "unauthorized",
                f"{again}; it was asked with a token that was got anew for it. Is the token for this server (audience, "
                "scopes), and is the server's clock right?",
                status=again.status,
            ) from None


def probe(
    url: str,
    *,
    deadline: float,
    max_bytes: int,
    body: bytes | None = None,
    access: Access = PLAIN,
    is_for_keys: bool = False,
) -> Answer:
    """The answer to a GET, or to a POST of `body`, whatever its status. `is_for_keys`: see dsf.http.deadline.Exchange.

    Over a new connection: a pooled one says nothing about health. Arguments and errors as for `get`, without
    those for a status; a redirect is still an error.
    """
    headers = {"Connection": "close"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    method = "GET" if body is None else "POST"
    return _Request(method, url, deadline, max_bytes, access, headers=headers, body=body).any(is_for_keys)


class _Request:
    """One request: state for all steps of the exchange."""

    def __init__(
        self,
        method: str,
        url: str,
        deadline: float,
        max_bytes: int,
        access: Access,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        params: Mapping[str, str | int] | None = None,
        body: bytes | Stream | None = None,
        explain: failures.Explain | None = None,
        may_hold_token: bool = False,
    ) -> None:
        self.place = failures.place(method, url)
        self.deadline = deadline
        self.max_bytes = max_bytes
        self.access = access
        self.explain = explain
        self.may_hold_token = may_hold_token
        self.proxy: proxies.Proxy | None = None
        self.prepared = self._prepare(
            requests.Request(
                method,
                urldefrag(url)[0],
                headers={**headers, **dict(access.headers)},
                params=[*(params or {}).items(), *access.params],
                data=body,
                # Always one: requests would look for a user in the URL.
                auth=self._signed,
            )
        )

    @property
    def where(self) -> str:
        return self.place if self.proxy is None else f"{self.place} (through the proxy {self.proxy.shown})"

    def good(self) -> Answer:
        """An answer with status 200. Any other status raises HttpError."""
        return self._run(Exchange(self.deadline, self.max_bytes, tls=self.access.tls), lambda status: status == _OK)

    def any(self, is_for_keys: bool) -> Answer:
        """The answer with any status but a redirect, over a separate connection."""
        exchange = Exchange(self.deadline, self.max_bytes, tls=self.access.tls, is_for_keys=is_for_keys, is_on_new=True)
        return self._run(exchange, lambda status: status not in _REDIRECTS)

    def _prepare(self, request: requests.Request) -> requests.PreparedRequest:
        try:
            if not request.url.lower().startswith(("http://", "https://")):
                raise ValueError
            prepared = transport.session.prepare_request(request)
        except (requests.RequestException, ValueError):
            raise HttpError("connection_failed", f"{self.place}: not a URL that can be asked") from None
        if not self.access.is_direct:
            own = self.access.proxy
            self.proxy = transport.proxy_for(str(prepared.url), has_token=self.access.is_secret, own=own)
        return prepared

    def _signed(self, prepared: requests.PreparedRequest) -> requests.PreparedRequest:
        if self.access.sign is not None:
            self.access.sign(prepared)
        return prepared

    def _run(self, exchange: Exchange, is_wanted: Callable[[int], bool]) -> Answer:
        started = time.monotonic()
        if self.deadline <= started:
            raise HttpError("timeout", f"{self.where}: no time is left")
        try:
            with running(exchange):
                if self.proxy is not None:
                    addresses.check(str(self.prepared.url), exchange)
                with self._response(exchange) as response:
                    if not is_wanted(response.status_code):
                        raise self._refusal(response)
                    return Answer(
                        response.status_code,
                        self._body(response, exchange),
                        response.headers.get("Content-Type", ""),
                    )
        except (requests.RequestException, urllib3.exceptions.HTTPError, NotHttpError, ValueError, OSError) as error:
            # from None: the library's text may hold the whole URL.
            if time.monotonic() >= exchange.deadline or failures.is_timeout(error):
                raise failures.timeout(self.where, time.monotonic() - started) from None
            raise failures.broken(self.where, error, self.max_bytes) from None

    def _response(self, exchange: Exchange) -> requests.Response:
        """The response. What fails on a kept connection without any answer is repeated on a new one, once.

        The server, or something on the way there, may have given that connection up meanwhile.
        """
        try:
            return transport.send(self.prepared, self.proxy)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError):
            if not exchange.may_repeat():
                raise
        exchange.is_on_new = True
        return transport.send(self.prepared, self.proxy)

    def _refusal(self, response: requests.Response) -> HttpError:
        head = bytearray()
        try:
            for piece in self._pieces(response, _REFUSAL_BYTES):
                head += piece
                if len(head) >= _REFUSAL_BYTES:
                    break
        except (urllib3.exceptions.HTTPError, NotHttpError, coding.CodingError, HttpError, OSError):
            # The status alone says enough.
            pass
        return failures.refusal(
            self.where,
            response.status_code,
            response.headers,
            bytes(head[:_REFUSAL_BYTES]),
            self.access.secrets,
            self.explain,
            may_hold_token=self.may_hold_token,
        )

    def _body(self, response: requests.Response, exchange: Exchange) -> bytes:
        length = response.raw.length_remaining
        if length is not None and length > self.max_bytes:
            raise failures.too_large(self.where, self.max_bytes, f"has {length} bytes")
        # The first read gets all of a plain body of known length, without a second copy.
        pieces: list[bytes] = []
        total = 0
        for piece in self._pieces(response, length or _READ_BYTES):
            total += len(piece)
            if total > self.max_bytes:
                raise failures.too_large(self.where, self.max_bytes)
            # Decompression is not socket I/O.
            exchange.remaining()
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _pieces(self, response: requests.Response, size: int) -> Iterator[bytes]:
        """The body, decompressed; in pieces of `size` bytes when it is not compressed."""
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding in ("", "identity"):
            return _raw(response, size)
        if encoding not in coding.KNOWN:
            raise HttpError(
                "bad_answer", f"{self.where}: the answer's Content-Encoding is one that was not asked for, send gzip"
            )
        return coding.inflated(_raw(response, _READ_COMPRESSED))


def _raw(response: requests.Response, size: int) -> Iterator[bytes]:
    """The body as it came, without the framing of chunks."""
    try:
        yield from response.raw.stream(size, decode_content=False)
    except ValueError:
        # urllib3 takes a negative size for one.
        raise NotHttpError("a chunk of its body has no size") from None
