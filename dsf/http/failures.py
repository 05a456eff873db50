"""What went wrong with an exchange, as an HttpError: what, where, and whether the same request may succeed later."""

from __future__ import annotations

import email.utils
import http.client
import time
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit

import requests
import urllib3.exceptions

from dsf.errors import HttpError

#: Bytes of a foreign answer that are shown in a message.
EXCERPT_BYTES = 200
#: Seconds; a longer Retry-After is cut to this. No cycle waits that long.
MAX_RETRY_AFTER = 600.0

_RETRYABLE = frozenset({429, 502, 503, 504})

#: Looks at the status and the first bytes of a refusal; returns (reason, text) when it knows better than the status.
Explain = Callable[[int, bytes], tuple[str, str] | None]


def place(method: str, url: str) -> str:
    """`GET http://host:port/path` for messages: without user information and query."""
    parts = urlsplit(url)
    return f"{method} {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def printable(text: str) -> str:
    """The text on one line, without control characters: it goes to terminals, logs and Kubernetes objects."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def excerpt(body: bytes) -> str:
    """The first bytes of an answer for a message."""
    return printable(body[:EXCERPT_BYTES].decode(errors="replace"))


def without_token(body: bytes, token: str | None) -> bytes:
    """The answer of a server that repeats the token it was sent, without the token."""
    return body.replace(token.encode(), b"***") if token else body


def refusal(
    where: str, status: int, headers: Mapping[str, str], body: bytes, explain: Explain | None = None
) -> HttpError:
    """An answer with another status than 200. `body` is its head, without tokens."""
    known = explain(status, body) if explain is not None else None
    if known is not None:
        reason, text = known[0], printable(known[1])
    elif 300 <= status < 400:
        reason, text = "redirect", "redirects are not followed; give the final URL"
    else:
        reason = "unauthorized" if status in (401, 403) else "http_error"
        text = excerpt(body)
    message = f"{where}: HTTP {status}" + (f": {text}" if text else "")
    return HttpError(
        reason,
        message,
        status=status,
        retryable=status in _RETRYABLE,
        retry_after=retry_after(headers.get("Retry-After")) if status in _RETRYABLE else None,
    )


def retry_after(value: str | None) -> float | None:
    """Seconds to wait from a Retry-After header: a number or an HTTP date. None when there is none or it is wrong."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        seconds = float(value[:9])
    else:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def timeout(where: str, seconds: float) -> HttpError:
    """No whole answer in time. The same request may be faster later; whether there is time for it, the caller knows."""
    return HttpError("timeout", f"{where}: no complete answer within {seconds:.3g} s", retryable=True)


def broken(where: str, error: Exception) -> HttpError:
    """The exchange ended with an exception of requests, urllib3 or the operating system, other than a timeout."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, urllib3.exceptions.DecodeError | requests.exceptions.ContentDecodingError):
            return HttpError("bad_answer", f"{where}: the answer cannot be decompressed")
        if isinstance(cause, http.client.IncompleteRead | urllib3.exceptions.InvalidChunkLength):
            return HttpError("truncated", f"{where}: the answer ends too early", retryable=True)
        if isinstance(cause, urllib3.exceptions.NameResolutionError):
            return HttpError("connection_failed", f"{where}: the host name cannot be resolved", retryable=True)
        if isinstance(cause, urllib3.exceptions.SSLError):
            # A certificate does not get better within a cycle.
            return HttpError("connection_failed", f"{where}: TLS failed: {printable(str(cause))[:EXCERPT_BYTES]}")
    for cause in reversed(causes):
        if isinstance(cause, OSError) and cause.strerror:
            return HttpError("connection_failed", f"{where}: {printable(cause.strerror)}", retryable=True)
    if any(isinstance(cause, urllib3.exceptions.ConnectTimeoutError) for cause in causes):
        return HttpError("connection_failed", f"{where}: the server does not accept the connection", retryable=True)
    return HttpError("connection_failed", f"{where}: the server closed the connection", retryable=True)


def is_timeout(error: Exception) -> bool:
    """Whether the exchange failed because a read or a write took too long (not: connecting)."""
    return any(
        isinstance(cause, TimeoutError | urllib3.exceptions.ReadTimeoutError | requests.exceptions.ReadTimeout)
        for cause in _causes(error)
    ) and not any(isinstance(cause, urllib3.exceptions.ConnectTimeoutError) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and the errors it was made from: libraries put them into args, `reason`, `__cause__`, `__context__`."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        current = waiting.pop(0)
        if not isinstance(current, BaseException) or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [*current.args, getattr(current, "reason", None), current.__cause__, current.__context__]
