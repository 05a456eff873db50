"""Turns failures of an exchange into HttpErrors: cause, place, and whether a retry may succeed."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC
from typing import Any, Final

from urllib3.exceptions import (
    ConnectTimeoutError,
    InvalidChunkLength,
    InvalidHeader,
    LocationParseError,
    NameResolutionError,
    ProtocolError,
    SSLError,
)

from dsf.errors import HttpError
from dsf.text import cleaned, masked


class NotHttpError(http.client.HTTPException):
    """The response violates the rules of HTTP; the message says how, without quoting it."""


class TooMuchError(http.client.HTTPException):
    """The response exceeds its limit of bytes."""


#: Characters of a foreign answer shown in a message.
EXCERPT = 200
#: Statuses for rejected credentials: 400 is that of token servers.
_REFUSES_WHO = frozenset({400, 401, 403})

_NOT_HTTP = "the answer is not as HTTP wants it: "
_CLOSED = "the server closed the connection"
_RETRYABLE = frozenset({429, 502, 503, 504})
#: Message for a rejected certificate, of the server or of the client.
TLS_FAILED = "TLS failed"
#: http.client's message when a proxy opens no tunnel.
_NO_TUNNEL = re.compile(r"Tunnel connection failed: (\d+) ?(.*)", re.DOTALL)

#: Meaning of exceptions in an exchange: class, and words of its text where the class says less; reason and text of the
#: error, {} for the exception's text (http.client's quote the response); whether a retry may succeed. The first that
#: fits counts.
_KINDS: Final[tuple[tuple[type[BaseException], str, str, str, bool], ...]] = tuple(
    (kind, words, reason, _NOT_HTTP + text if reason == "bad_answer" else text, retryable)
    for kind, words, reason, text, retryable in (
        (InvalidChunkLength, "", "bad_answer", "a chunk of its body has no size", False),
        (ProtocolError, "exceeded maximum", "bad_answer", "a line between its chunks is too long", False),
        (ProtocolError, "Response ended prematurely", "truncated", "the answer ends too early", True),
        (http.client.IncompleteRead, "", "truncated", "the answer ends too early", True),
        (http.client.RemoteDisconnected, "", "connection_failed", _CLOSED, True),
        (NotHttpError, "", "bad_answer", "{}", False),
        (http.client.BadStatusLine, "", "bad_answer", "its first line is no status line", False),
        (http.client.UnknownProtocol, "", "bad_answer", "its version of HTTP is not known", False),
        (http.client.LineTooLong, "", "bad_answer", "a line of its headers is too long", False),
        (http.client.HTTPException, "", "bad_answer", "it has too many headers", False),
        (InvalidHeader, "", "bad_answer", "a header has a bad value", False),
        (NameResolutionError, "", "connection_failed", "the host name cannot be resolved", True),
        (LocationParseError, "", "connection_failed", "the host name is no name that a host can have", False),
        # A retry within the cycle would fail as well.
        (SSLError, "", "connection_failed", f"{TLS_FAILED}: {{}}", False),
    )
)

_MEDIA_TYPE: Final = re.compile(r"[a-z]+/[a-z0-9.+-]{1,60}")
#: The fields of an error of AWS.
_XML_FIELDS: Final = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>")

#: Takes status and first bytes of a refusal; returns (reason, text) when they are more specific than the status.
Explain = Callable[[int, bytes], tuple[str, str] | None]


def excerpt(body: bytes, secrets: Iterable[str] = ()) -> str:
    """Return the first characters of a response for a message, without the secrets that were sent."""
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
    """Return the error for a status other than 200. `body` is its head, `secrets` are those sent."""
    explanation = explain(status, body) if explain is not None else None
    if explanation is not None:
        # The text was decoded: only now can a secret in it be found.
        reason, text = explanation[0], cleaned(masked(explanation[1], *secrets), 1000)
    elif 300 <= status < 400:
        reason, text = "redirect", "redirects are not followed; give the final URL"
    elif 200 < status < 300:
        # Examples are the 201 of a framework's default for POST, or 204 and 206, whose body is none or a part.
        reason, text = "http_error", "only status 200 counts as an answer; have the server send 200"
    else:
        reason = "unauthorized" if status in (401, 403) else "http_error"
        if may_hold_token:
            text = shown_token_answer(status, headers.get("Content-Type", ""), body, secrets)
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
        retry_after=retry_after(headers.get("Retry-After"), headers.get("Date")) if status in _RETRYABLE else None,
    )


def _challenge(headers: Mapping[str, str], secrets: Iterable[str]) -> str:
    """Return the server's error about a token in WWW-Authenticate (RFC 6750), often the only place for it."""
    challenge = headers.get("WWW-Authenticate", "")
    return excerpt(challenge.encode(errors="replace"), secrets) if "error" in challenge else ""


def _skew(date: str | None) -> str:
    """Return the server's clock skew, where it may be why a token or signature is rejected."""
    try:
        seconds = _seconds_until(date or "")
    except (ValueError, OverflowError):
        return ""
    # More than a response takes, and no more than the tolerance of tokens and signatures (a minute for tokens, five for
    # AWS).
    if abs(seconds) < 30.0:
        return ""
    where = "ahead of" if seconds > 0 else "behind"
    return (
        f"the server's clock is {abs(seconds):.0f} s {where} that of who asks, so tokens and signatures may not count"
    )


def retry_after(value: str | None, date: str | None = None) -> float | None:
    """Return the seconds to wait from a Retry-After header: a number or an HTTP date. None when absent or invalid.

    `date` is the server's Date header: a Retry-After is a time of that clock, which may differ from this machine's.
    """
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
        with contextlib.suppress(ValueError, OverflowError):
            seconds -= _seconds_until(date or "")
    # No cycle waits longer.
    return min(max(seconds, 0.0), 600.0)


def _seconds_until(date: str) -> float:
    """Return seconds until an HTTP date. ValueError or OverflowError if invalid."""
    parsed = email.utils.parsedate_to_datetime(date)
    # HTTP dates are GMT (RFC 9110, 5.6.7); without a zone Python would use this machine's.
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() - time.time()


def timeout(where: str, seconds: float) -> HttpError:
    """No complete answer in time. A retry may be faster; the caller knows whether there is time for it."""
    seconds_text = f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
    return HttpError("timeout", f"{where}: no complete answer within {seconds_text} s", retryable=True)


def too_large(where: str, max_bytes: int, what: str = "is longer") -> HttpError:
    """Return a response that would exceed its memory limit."""
    return HttpError("too_large", f"{where}: the answer {what}, more than the {max_bytes} bytes allowed")


def broken(where: str, error: Exception, max_bytes: int) -> HttpError:
    """The exchange ended with an exception of ours, requests, urllib3 or the operating system other than a timeout.

    A server that violates HTTP will do so again; one that disconnected may recover.
    """
    causes = list(_causes(error))
    for cause in causes:
        text = str(cause)
        if isinstance(cause, TooMuchError):
            return too_large(where, max_bytes)
        if tunnel_error := _NO_TUNNEL.fullmatch(text):
            code, phrase = int(tunnel_error[1]), cleaned(tunnel_error[2], EXCERPT)
            answered = f"{where}: the proxy answers {code} {phrase}".rstrip()
            return HttpError("connection_failed", answered, retryable=code in _RETRYABLE)
        for kind, words, reason, message, retryable in _KINDS:
            if isinstance(cause, kind) and words in text:
                return HttpError(reason, f"{where}: {message.format(cleaned(text, EXCERPT))}", retryable=retryable)
    last = _CLOSED
    if any(isinstance(cause, ConnectTimeoutError) for cause in causes):
        last = "the server does not accept the connection"
    error_texts = [cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror]
    return HttpError("connection_failed", f"{where}: {cleaned([last, *error_texts][-1], EXCERPT)}", retryable=True)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and the errors that caused it: libraries put them into args, `reason`, `__cause__`, `__context__`."""
    visited_ids: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        current = waiting.pop(0)
        if not isinstance(current, BaseException) or id(current) in visited_ids:
            continue
        visited_ids.add(id(current))
        yield current
        waiting += [*current.args, getattr(current, "reason", None), current.__cause__, current.__context__]


def shown_token_answer(status: int, content_type: str, body: bytes, secrets: Iterable[str] = ()) -> str:
    """Return the fields of an error without the secrets that were sent, or else kind and length of the response."""
    error = _error_fields(body.decode(errors="replace")) if status >= 400 else ""
    if error:
        return cleaned(masked(error, *secrets), 500)
    kind = content_type.partition(";")[0].strip().lower()
    kind = kind if _MEDIA_TYPE.fullmatch(kind) else "of no known type"
    return f"an answer ({kind}, {len(body)} bytes) that is not shown, as it may hold a token"


def _error_fields(text: str) -> str:
    try:
        document = _lowered(json.loads(text))
    except (ValueError, RecursionError):
        fields = _XML_FIELDS.search(text)
        return "" if fields is None else ": ".join(fields.groups())
    # The fields of an error: RFC 6749, 5.2; then those of clouds, for some within `error`.
    names = "error", "error_description", "code", "message"
    document = _lowered(document.get("error")) or document
    return ": ".join(str(document[name]) for name in names if isinstance(document.get(name), str | int))


def _lowered(document: Any) -> dict[str, Any]:
    return {name.lower(): value for name, value in document.items()} if isinstance(document, dict) else {}
