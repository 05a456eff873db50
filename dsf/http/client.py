"""GET and POST of one document, within a deadline and a number of bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import requests
import urllib3.exceptions
from requests.adapters import HTTPAdapter

from dsf.errors import HttpError
from dsf.http import failures, transport
from dsf.http.deadline import Exchange, watchdog

#: Seconds to connect. A server in the same cluster takes milliseconds; the rest of the time belongs to its work.
CONNECT_TIMEOUT = 3.0
#: Bytes read at once when the length of an answer is not known.
_READ_BYTES = 1024 * 1024
#: Bytes of a refusal that are read for its message.
_REFUSAL_BYTES = 16 * 1024
_OK = 200

_HEADERS = {"User-Agent": "dynamic-scoring-framework", "Accept": "application/json"}


class Stream(Protocol):
    """A request body that is not in memory as a whole: its length is known and it is read in pieces."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[memoryview]: ...


def get(
    url: str,
    *,
    deadline: float,
    max_bytes: int,
    params: Mapping[str, str | int] | None = None,
    token: str | None = None,
    explain: failures.Explain | None = None,
) -> bytes:
    """The body of the answer to a GET, decompressed.

    `deadline` is a time of time.monotonic(), `token` is sent as a Bearer token, `explain` may read the reason of a
    refusal from its body. Raises HttpError with one of the reasons connection_failed, timeout, truncated, too_large,
    redirect, unauthorized, http_error, bad_answer, or the one that `explain` gave.
    """
    # Only gzip: it is what Prometheus offers, and what is decoded with a limit.
    return _Request("GET", url, deadline, max_bytes, token, explain).send({"Accept-Encoding": "gzip"}, params=params)


def post(
    url: str,
    body: bytes | Stream,
    *,
    deadline: float,
    max_bytes: int,
    token: str | None = None,
    content_type: str = "application/json",
) -> bytes:
    """The body of the answer to a POST of `body`, decompressed. Arguments and errors as for `get`."""
    headers = {"Accept-Encoding": "gzip", "Content-Type": content_type, "Content-Length": str(len(body))}
    return _Request("POST", url, deadline, max_bytes, token, None).send(headers, data=body)


class _Request:
    """One request: what all steps of the exchange need to know."""

    __slots__ = ("deadline", "explain", "max_bytes", "method", "token", "url")

    def __init__(
        self,
        method: str,
        url: str,
        deadline: float,
        max_bytes: int,
        token: str | None,
        explain: failures.Explain | None,
    ) -> None:
        self.method = method
        self.url = url
        self.deadline = deadline
        self.max_bytes = max_bytes
        self.token = token
        self.explain = explain

    @property
    def where(self) -> str:
        return failures.place(self.method, self.url)

    def send(self, headers: dict[str, str], **content: Any) -> bytes:
        started = time.monotonic()
        seconds = self.deadline - started
        if seconds <= 0:
            raise HttpError("timeout", f"{self.where}: no time is left")
        prepared = self._prepare(headers, content)
        exchange = Exchange(self.deadline)
        watchdog.watch(exchange)
        adapter = transport.begin(exchange)
        try:
            body = self._exchange(adapter, prepared, seconds)
        except HttpError:
            if exchange.expired:
                raise failures.timeout(self.where, seconds) from None
            raise
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            # from None: what these libraries say may hold the whole URL.
            if exchange.expired or failures.is_timeout(error):
                raise failures.timeout(self.where, time.monotonic() - started) from None
            raise failures.broken(self.where, error) from None
        finally:
            exchange.finish()
        if exchange.expired:
            # To http.client an end of file within the headers, or in a body without a length, is a complete answer.
            raise failures.timeout(self.where, seconds)
        return body

    def _prepare(self, headers: dict[str, str], content: dict[str, Any]) -> requests.PreparedRequest:
        headers = _HEADERS | headers
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        prepared = requests.PreparedRequest()
        try:
            if not self.url.lower().startswith(("http://", "https://")):
                raise ValueError
            # No auth: requests would look for user information in the URL.
            prepared.prepare_method(self.method)
            prepared.prepare_url(self.url, content.get("params"))
            prepared.prepare_headers(headers)
        except (requests.RequestException, ValueError):
            raise HttpError("connection_failed", f"{self.where}: not a URL that can be asked") from None
        prepared.body = content.get("data")
        return prepared

    def _exchange(self, adapter: HTTPAdapter, prepared: requests.PreparedRequest, seconds: float) -> bytes:
        timeout = (min(CONNECT_TIMEOUT, seconds), seconds)
        response = adapter.send(prepared, stream=True, timeout=timeout, verify=True)
        try:
            raw: urllib3.HTTPResponse = response.raw
            if response.status_code != _OK:
                raise failures.refusal(
                    self.where, response.status_code, response.headers, self._refusal(raw), self.explain
                )
            return self._read(raw)
        finally:
            # Closes the connection unless the answer was read to its end.
            response.close()

    def _refusal(self, raw: urllib3.HTTPResponse) -> bytes:
        try:
            body = raw.read(_REFUSAL_BYTES, decode_content=True)
        except (urllib3.exceptions.HTTPError, OSError):
            # The status alone says enough.
            return b""
        return failures.without_token(body, self.token)

    def _read(self, raw: urllib3.HTTPResponse) -> bytes:
        length = raw.length_remaining
        if length is not None and length > self.max_bytes:
            raise self._too_large(f"has {length} bytes")
        encoded = "Content-Encoding" in raw.headers
        # Of a plain body of known length the first read gets everything, without a second copy.
        size = _READ_BYTES if encoded or not length else length
        pieces: list[bytes] = []
        total = 0
        while piece := raw.read(size, decode_content=encoded):
            total += len(piece)
            if total > self.max_bytes:
                raise self._too_large("is longer")
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _too_large(self, what: str) -> HttpError:
        return HttpError("too_large", f"{self.where}: the answer {what}, more than the {self.max_bytes} bytes allowed")
