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

#: Characters of a foreign answer that are shown in a message; of Prometheus' own words; of a URL.
EXCERPT = 200
_EXPLAINED = 1000
_PLACE_LIMIT = 500
#: Seconds between a server's clock and this one from which on a refusal says so: more than an answer takes, and no more
#: than what a token or signature may be off (a minute for tokens, five for Amazon).
_SKEW = 30.0
#: The status of those that do not take who asks: 400 is that of servers of tokens.
_REFUSES_WHO = frozenset({400, 401, 403})
#: Seconds; a longer Retry-After is cut to this. No cycle waits that long.
MAX_RETRY_AFTER = 600.0

_CLOSED = "the server closed the connection"
_RETRYABLE = frozenset({429, 502, 503, 504})
#: What is said of a server whose certificate is not taken, or who does not take that of the client.
TLS_FAILED = "TLS failed"
#: How http.client says that a proxy opened no tunnel.
_NO_TUNNEL = re.compile(r"Tunnel connection failed: (\d+) ?(.*)", re.DOTALL)

#: Looks at the status and the first bytes of a refusal; returns (reason, text) when it knows better than the status.
Explain = Callable[[int, bytes], tuple[str, str] | None]


def place(method: str, url: str) -> str:
    """`GET http://host:port/path` for messages: without user information and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        # Where its parts begin and end cannot be told, so none is shown.
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
    """An answer with another status than 200. `body` is its head, `secrets` are those that were sent."""
    known = explain(status, body) if explain is not None else None
    if known is not None:
        # What it found was decoded: only now a secret in it looks like one.
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
    """What a server says of a token in the place that RFC 6750 has for it; it often says it nowhere else."""
    said = headers.get("WWW-Authenticate", "")
    return excerpt(said.encode(errors="replace"), secrets) if "error" in said else ""


def _skew(date: str | None) -> str:
    """How far the server's clock is from this one, where that may be why it takes no token and no signature."""
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
    """Seconds to wait from a Retry-After header: a number or an HTTP date. None when there is none or it is wrong."""
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
    """From now to an HTTP date. ValueError or OverflowError if it is none."""
    found = email.utils.parsedate_to_datetime(date)
    # HTTP's dates are GMT (RFC 9110, 5.6.7); of one without a zone Python would take this machine's.
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() - time.time()


def timeout(where: str, seconds: float) -> HttpError:
    """No whole answer in time. The same request may be faster later; whether there is time for it, the caller knows."""
    shown = f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
    return HttpError("timeout", f"{where}: no complete answer within {shown} s", retryable=True)


def too_large(where: str, max_bytes: int, what: str = "is longer") -> HttpError:
    """An answer that would need more memory than it may."""
    return HttpError("too_large", f"{where}: the answer {what}, more than the {max_bytes} bytes allowed")


def broken(where: str, error: Exception, max_bytes: int) -> HttpError:
    """The exchange ended with an exception of ours, requests, urllib3 or the operating system other than a timeout.

    A server that breaks the rules of HTTP will do so again; one that went away may come back.
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
        case UnfinishedError() | http.client.IncompleteRead():
            return HttpError("truncated", f"{where}: the answer ends too early", retryable=True)
        case http.client.RemoteDisconnected():
            return HttpError("connection_failed", f"{where}: {_CLOSED}", retryable=True)
        case urllib3.exceptions.NameResolutionError():
            return HttpError("connection_failed", f"{where}: the host name cannot be resolved", retryable=True)
        case urllib3.exceptions.LocationParseError():
            return HttpError("connection_failed", f"{where}: the host name is no name that a host can have")
        case urllib3.exceptions.SSLError():
            # A certificate does not get better within a cycle.
            return HttpError("connection_failed", f"{where}: {TLS_FAILED}: {cleaned(str(cause), EXCERPT)}")
    if found := _NO_TUNNEL.fullmatch(str(cause)):
        code, said = int(found[1]), cleaned(found[2], EXCERPT)
        return HttpError(
            "connection_failed", f"{where}: the proxy answers {code} {said}".rstrip(), retryable=code in _RETRYABLE
        )
    if words := _broken_rule(cause):
        return HttpError("bad_answer", f"{where}: the answer is not as HTTP wants it: {words}")
    return None


def _broken_rule(cause: BaseException) -> str:
    """The rule of HTTP that an answer breaks; empty for another error. http.client's own texts quote the answer."""
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
