"""GET and POST of one document, within a deadline and a byte limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import requests
import urllib3.exceptions

from dsf.errors import HttpError
from dsf.http import addresses, coding, failures, proxies, transport, urls
from dsf.http.access import PLAIN, Access
from dsf.http.deadline import Exchange, watchdog
from dsf.http.response import Response

#: Bytes per read of an answer of unknown length or with compression.
_READ_BYTES = 1024 * 1024
_READ_COMPRESSED = 64 * 1024
#: Bytes of an error answer read for its message.
_REFUSAL_BYTES = 16 * 1024
_OK = 200
_REDIRECTS = range(300, 400)

_HEADERS = {"User-Agent": "dynamic-scoring-framework", "Accept": "application/json"}
# Only gzip: it is what Prometheus offers.
_ENCODING = {"Accept-Encoding": "gzip"}


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
        return _Request("GET", url, deadline, max_bytes, access, explain).send(_ENCODING, params=params).body

    return _renewed(send, access, deadline)


def post(
    url: str,
    body: bytes | Stream,
    *,
    deadline: float,
    max_bytes: int,
    access: Access = PLAIN,
    content_type: str = "application/json",
) -> bytes:
    """The body of the answer to a POST of `body`, decompressed. Arguments and errors as for `get`."""
    headers = _ENCODING | {"Content-Type": content_type, "Content-Length": str(len(body))}

    def send(access: Access) -> bytes:
        return _Request("POST", url, deadline, max_bytes, access, None).send(headers, data=body).body

    return _renewed(send, access, deadline)


def ask_for_token(
    url: str, body: bytes | None, *, deadline: float, max_bytes: int, access: Access, content_type: str
) -> Answer:
    """A token server's answer with status 200 to a POST of `body`, or to a GET where it is None.

    No error quotes the answer (dsf.http.tokenanswer). Arguments and errors as for `get`.
    """
    if body is None:
        return _Request("GET", url, deadline, max_bytes, access, None, may_hold_token=True).send(_ENCODING)
    headers = _ENCODING | {"Content-Type": content_type, "Content-Length": str(len(body))}
    return _Request("POST", url, deadline, max_bytes, access, None, may_hold_token=True).send(headers, data=body)


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
    headers = _ENCODING | {"Connection": "close"}
    if body is None:
        return _Request("GET", url, deadline, max_bytes, access, None).probe(headers, is_for_keys)
    headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    return _Request("POST", url, deadline, max_bytes, access, None).probe(headers, is_for_keys, data=body)


class _Request:
    """One request: state for all steps of the exchange."""

    __slots__ = ("access", "deadline", "explain", "max_bytes", "may_hold_token", "method", "proxy", "url")

    def __init__(
        self,
        method: str,
        url: str,
        deadline: float,
        max_bytes: int,
        access: Access,
        explain: failures.Explain | None,
        *,
        may_hold_token: bool = False,
    ) -> None:
        self.method = method
        self.url = url
        self.deadline = deadline
        self.max_bytes = max_bytes
        self.access = access
        self.explain = explain
        self.may_hold_token = may_hold_token
        self.proxy: proxies.Proxy | None = None

    @property
    def where(self) -> str:
        place = failures.place(self.method, self.url)
        return place if self.proxy is None else f"{place} (through the proxy {self.proxy.shown})"

    def send(self, headers: Mapping[str, str], **content: Any) -> Answer:
        """An answer with status 200. Any other status raises HttpError."""
        prepared = self._prepare(headers, content)
        exchange = Exchange(self.deadline, self.max_bytes)
        return self._run(exchange, transport.begin(exchange, self.access.tls), prepared, self._body_of_good)

    def probe(self, headers: Mapping[str, str], is_for_keys: bool, **content: Any) -> Answer:
        """The answer with any status but a redirect, over a separate connection."""
        prepared = self._prepare(headers, content)
        exchange = Exchange(self.deadline, self.max_bytes, is_for_keys=is_for_keys)
        with transport.begin_anew(exchange, self.access.tls) as adapter:
            return self._run(exchange, adapter, prepared, self._body_of_any)

    def _run(
        self,
        exchange: Exchange,
        adapter: transport.Adapter,
        prepared: requests.PreparedRequest,
        read: Callable[[Response], bytes],
    ) -> Answer:
        started = time.monotonic()
        seconds = self.deadline - started
        if seconds <= 0:
            raise HttpError("timeout", f"{self.where}: no time is left")
        watchdog.watch(exchange)
        hops = None
        try:
            if self.proxy is not None:
                addresses.check(str(prepared.url), exchange)
                hops = dict.fromkeys(proxies.PORTS, self.proxy.url)
            with _asked(adapter, exchange, prepared, seconds, hops) as response:
                found = Answer(response.status_code, read(response), response.headers.get("Content-Type", ""))
        except HttpError:
            if exchange.expired:
                raise failures.timeout(self.where, seconds) from None
            raise
        except (requests.RequestException, urllib3.exceptions.HTTPError, coding.CodingError, OSError) as error:
            # from None: the library's text may hold the whole URL.
            if exchange.expired or failures.is_timeout(error):
                raise failures.timeout(self.where, time.monotonic() - started) from None
            raise failures.broken(self.where, error, self.max_bytes) from None
        finally:
            exchange.finish()
        if exchange.expired:
            # http.client takes EOF within the headers, or in a body without a length, for a complete answer.
            raise failures.timeout(self.where, seconds)
        return found

    def _prepare(self, headers: Mapping[str, str], content: dict[str, Any]) -> requests.PreparedRequest:
        sent = {**_HEADERS, **headers}
        sent.update(self.access.headers)
        prepared = requests.PreparedRequest()
        try:
            if not self.url.lower().startswith(("http://", "https://")):
                raise ValueError
            # No auth: requests would look for user information in the URL.
            prepared.prepare_method(self.method)
            params = [*(content.get("params") or {}).items(), *self.access.params]
            prepared.url = urls.with_params(urls.ready(self.url), params)
            if self.access.headers or self.access.sign is not None:
                prepared.prepare_headers(sent)
            else:
                # Only our own: they need no validation, and each occurs once.
                prepared.headers = sent  # type: ignore[assignment]
        except (requests.RequestException, ValueError):
            raise HttpError("connection_failed", f"{self.where}: not a URL that can be asked") from None
        prepared.body = content.get("data")
        if self.access.sign is not None:
            self.access.sign(prepared)
        if not self.access.is_direct:
            own = self.access.proxy
            self.proxy = transport.proxy_for(urls.ready(self.url), has_token=self.access.is_secret, own=own)
        return prepared

    def _body_of_good(self, response: Response) -> bytes:
        if response.status_code != _OK:
            raise self._refusal(response)
        return self._body(response)

    def _body_of_any(self, response: Response) -> bytes:
        if response.status_code in _REDIRECTS:
            raise self._refusal(response)
        return self._body(response)

    def _refusal(self, response: Response) -> HttpError:
        head = bytearray()
        try:
            for piece in self._pieces(response, _REFUSAL_BYTES):
                head += piece
                if len(head) >= _REFUSAL_BYTES:
                    break
        except (urllib3.exceptions.HTTPError, coding.CodingError, HttpError, OSError):
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

    def _body(self, response: Response) -> bytes:
        length = response.length_remaining
        if length is not None and length > self.max_bytes:
            raise failures.too_large(self.where, self.max_bytes, f"has {length} bytes")
        # The first read gets all of a plain body of known length, without a second copy.
        pieces: list[bytes] = []
        total = 0
        for piece in self._pieces(response, length or _READ_BYTES):
            total += len(piece)
            if total > self.max_bytes:
                raise failures.too_large(self.where, self.max_bytes)
            if time.monotonic() >= self.deadline:
                # Decompression is not socket I/O.
                raise TimeoutError
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _pieces(self, response: Response, size: int) -> Iterator[bytes]:
        """The body, decompressed; in pieces of `size` bytes when it is not compressed."""
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding in ("", "identity"):
            return _plain(response, size)
        if encoding not in coding.KNOWN:
            raise HttpError(
                "bad_answer", f"{self.where}: the answer's Content-Encoding is one that was not asked for, send gzip"
            )
        return coding.inflated(iter(partial(response.read, _READ_COMPRESSED), b""))


def _asked(
    adapter: transport.Adapter,
    exchange: Exchange,
    prepared: requests.PreparedRequest,
    seconds: float,
    hops: dict[str, str] | None,
) -> Response:
    """The response. What fails on a kept connection without any answer is repeated on a new one, once.

    The server, or something on the way there, may have given that connection up meanwhile.
    """
    timeout = min(addresses.CONNECT_TIMEOUT, seconds), seconds
    try:
        return adapter.ask(prepared, timeout, hops)
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError):
        if not exchange.may_repeat():
            raise
    exchange.is_repeated = True
    exchange.check()
    return adapter.ask(prepared, timeout, hops)


def _plain(response: Response, size: int) -> Iterator[bytes]:
    while piece := response.read(size):
        yield piece
        if response.length_remaining == 0:
            # To read once more would say so.
            return
