"""Turns failures of an exchange into HttpErrors: cause, place, and whether a retry may succeed."""

from __future__ import annotations

import email.utils
import http.client
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC
from urllib.parse import urlsplit

import requests
import urllib3.exceptions

from dsf.errors import HttpError
from dsf.http import tokenanswer
from dsf.http.answer import NotHttpError, TooMuchError
from dsf.http.coding import CodingError, UnfinishedError
from dsf.text import cleaned, masked

#: Characters shown in a message: of a foreign answer; of Prometheus' error text; of a URL.
EXCERPT = 200
_EXPLAINED = 1000
_PLACE_LIMIT = 500
#: Clock skew in seconds from which a refusal mentions it: more than an answer takes, and no more than the tolerance of
#: tokens and signatures (a minute for tokens, five for AWS).
_SKEW = 30.0
#: Statuses for rejected credentials: 400 is that of token servers.
_REFUSES_WHO = frozenset({400, 401, 403})
#: Seconds; a longer Retry-After is cut to this. No cycle waits that long.
MAX_RETRY_AFTER = 600.0

_CLOSED = "the server closed the connection"
_RETRYABLE = frozenset({429, 502, 503, 504})
#: Message for a rejected certificate, of the server or of the client.
TLS_FAILED = "TLS failed"
#: http.client's message when a proxy opens no tunnel.
_NO_TUNNEL = re.compile(r"Tunnel connection failed: (\d+) ?(.*)", re.DOTALL)

#: Takes status and first bytes of a refusal; returns (reason, text) when they are more specific than the status.
Explain = Callable[[int, bytes], tuple[str, str] | None]


def place(method: str, url: str) -> str:
    """`GET http://host:port/path` for messages: without user information and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        # Its parts cannot be told apart, so none is shown.
        return f"{method} (not a URL)"
    return cleaned(f"{method} {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", _PLACE_LIMIT)


def excerpt(body: bytes, secrets: Iterable[str] = ()) -> str:
    """The first characters of an answer for a message, without the secrets that were sent."""
    return cleaned(masked(body.decode(errors="replace"), *secrets), EXCERPT)


def refusal(
    where: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    secrets: Iterable[str] = (),
    explain: Explain | None = None,
    *,
    may_hold_token: bool = False,
) -> HttpError:
    """The error for a status other than 200. `body` is its head, `secrets` are those sent."""
    known = explain(status, body) if explain is not None else None
    if known is not None:
        # The text was decoded: only now can a secret in it be found.
        reason, text = known[0], cleaned(masked(known[1], *secrets), _EXPLAINED)
    elif 300 <= status < 400:
        reason, text = "redirect", "redirects are not followed; give the final URL"
    else:
        reason = "unauthorized" if status in (401, 403) else "http_error"
        if may_hold_token:
            text = tokenanswer.shown(status, headers.get("Content-Type", ""), body, secrets)
        else:
            text = excerpt(body, secrets)
        if status in _REFUSES_WHO:
            challenge = "" if "error" in text else _challenge(headers, secrets)
            text = "; ".join(filter(None, (text, challenge, _skew(headers.get("Date")))))
    message = f"{where}: HTTP {status}" + (f": {text}" if text else "")
    return HttpError(
        reason,
        message,
        status=status,
        retryable=status in _RETRYABLE,
        retry_after=retry_after(headers.get("Retry-After")) if status in _RETRYABLE else None,
    )


def _challenge(headers: Mapping[str, str], secrets: Iterable[str]) -> str:
    """The server's error about a token in WWW-Authenticate (RFC 6750), often the only place for it."""
    said = headers.get("WWW-Authenticate", "")
    return excerpt(said.encode(errors="replace"), secrets) if "error" in said else ""


def _skew(date: str | None) -> str:
    """The server's clock skew, where it may be why a token or signature is rejected."""
    try:
        seconds = _seconds_until(date or "")
    except (ValueError, OverflowError):
        return ""
    if abs(seconds) < _SKEW:
        return ""
    where = "ahead of" if seconds > 0 else "behind"
    return (
        f"the server's clock is {abs(seconds):.0f} s {where} that of who asks, so tokens and signatures may not count"
    )


def retry_after(value: str | None) -> float | None:
    """Seconds to wait from a Retry-After header: a number or an HTTP date. None when absent or invalid."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        seconds = float(value[:9])
    else:
        try:
            seconds = _seconds_until(value)
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def _seconds_until(date: str) -> float:
    """Seconds until an HTTP date. ValueError or OverflowError if invalid."""
    found = email.utils.parsedate_to_datetime(date)
    # HTTP dates are GMT (RFC 9110, 5.6.7); without a zone Python would use this machine's.
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() - time.time()


def timeout(where: str, seconds: float) -> HttpError:
    """No complete answer in time. A retry may be faster; the caller knows whether there is time for it."""
    shown = f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
    return HttpError("timeout", f"{where}: no complete answer within {shown} s", retryable=True)


def too_large(where: str, max_bytes: int, what: str = "is longer") -> HttpError:
    """An answer that would exceed its memory limit."""
    return HttpError("too_large", f"{where}: the answer {what}, more than the {max_bytes} bytes allowed")


def broken(where: str, error: Exception, max_bytes: int) -> HttpError:
    """The exchange ended with an exception of ours, requests, urllib3 or the operating system other than a timeout.

    A server that violates HTTP will do so again; one that disconnected may recover.
    """
    causes = list(_causes(error))
    for cause in causes:
        if known := _known(where, cause, max_bytes):
            return known
    for cause in reversed(causes):
        if isinstance(cause, OSError) and cause.strerror:
            return HttpError("connection_failed", f"{where}: {cleaned(cause.strerror, EXCERPT)}", retryable=True)
    if any(isinstance(cause, urllib3.exceptions.ConnectTimeoutError) for cause in causes):
        return HttpError("connection_failed", f"{where}: the server does not accept the connection", retryable=True)
    return HttpError("connection_failed", f"{where}: {_CLOSED}", retryable=True)


def _known(where: str, cause: BaseException, max_bytes: int) -> HttpError | None:
    """The error for an exception whose class says what happened."""
    match cause:
        case TooMuchError():
            return too_large(where, max_bytes)
        case urllib3.exceptions.InvalidChunkLength():
            return HttpError(
                "bad_answer", f"{where}: the answer is not as HTTP wants it: a chunk of its body has no size"
            )
        case _ if _is_unfinished(cause):
            return HttpError("truncated", f"{where}: the answer ends too early", retryable=True)
        case http.client.RemoteDisconnected():
            return HttpError("connection_failed", f"{where}: {_CLOSED}", retryable=True)
        case urllib3.exceptions.NameResolutionError():
            return HttpError("connection_failed", f"{where}: the host name cannot be resolved", retryable=True)
        case urllib3.exceptions.LocationParseError():
            return HttpError("connection_failed", f"{where}: the host name is no name that a host can have")
        case urllib3.exceptions.SSLError():
            # A retry within the cycle would fail as well.
            return HttpError("connection_failed", f"{where}: {TLS_FAILED}: {cleaned(str(cause), EXCERPT)}")
    if found := _NO_TUNNEL.fullmatch(str(cause)):
        code, said = int(found[1]), cleaned(found[2], EXCERPT)
        return HttpError(
            "connection_failed", f"{where}: the proxy answers {code} {said}".rstrip(), retryable=code in _RETRYABLE
        )
    if words := _broken_rule(cause):
        return HttpError("bad_answer", f"{where}: the answer is not as HTTP wants it: {words}")
    return None


def _is_unfinished(cause: BaseException) -> bool:
    if isinstance(cause, UnfinishedError | http.client.IncompleteRead):
        return True
    # There is no class of its own for an answer in chunks without the last one.
    return isinstance(cause, urllib3.exceptions.ProtocolError) and str(cause) == "Response ended prematurely"


def _broken_rule(cause: BaseException) -> str:
    """The rule of HTTP that an answer violates; empty for other errors. http.client's texts quote the answer."""
    match cause:
        case CodingError() | NotHttpError():
            return str(cause)
        case http.client.BadStatusLine():
            return "its first line is no status line"
        case http.client.UnknownProtocol():
            return "its version of HTTP is not known"
        case http.client.LineTooLong():
            return "a line of its headers is too long"
        case http.client.HTTPException():
            return "it has too many headers"
        case urllib3.exceptions.ProtocolError() if "exceeded maximum allowed length" in str(cause):
            return "a line between its chunks is too long"
        case urllib3.exceptions.InvalidHeader():
            return "a header has a bad value"
    return ""


def is_timeout(error: Exception) -> bool:
    """Whether the exchange failed because a read or a write took too long (not: connecting)."""
    return any(
        isinstance(cause, TimeoutError | urllib3.exceptions.ReadTimeoutError | requests.exceptions.ReadTimeout)
        for cause in _causes(error)
    ) and not any(isinstance(cause, urllib3.exceptions.ConnectTimeoutError) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and the errors that caused it: libraries put them into args, `reason`, `__cause__`, `__context__`."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        current = waiting.pop(0)
        if not isinstance(current, BaseException) or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [*current.args, getattr(current, "reason", None), current.__cause__, current.__context__]
