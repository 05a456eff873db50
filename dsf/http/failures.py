"""Conversion of an exchange's failure to an HttpError with its cause, its URL, and whether a retry may succeed."""

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
from dsf.text import clean, mask_secrets


class NotHttpError(http.client.HTTPException):
    """Raised for a response that violates HTTP. The message names the violation without quoting the response."""


class TooMuchError(http.client.HTTPException):
    """Raised for a response that exceeds its limit of bytes."""


#: Maximum characters of a response that a message quotes.
EXCERPT_CHARACTERS: Final = 200
#: Maximum characters of the fields of a token server's error that a message quotes.
_MAX_TOKEN_ERROR_CHARACTERS: Final = 500
#: Maximum characters of a reason that an `Explain` function derives from a response.
_MAX_EXPLANATION_CHARACTERS: Final = 1000
#: Statuses for rejected credentials. Token servers use 400.
_CREDENTIAL_STATUSES: Final = frozenset({400, 401, 403})
#: Minimum clock skew in seconds that a message reports. It is longer than a response takes, and shorter than the
#: tolerance of servers, which is a minute for tokens and five minutes for the signatures of AWS.
_MIN_REPORTED_SKEW: Final = 30.0
#: Maximum seconds of a Retry-After that are respected, because no cycle waits longer.
_MAX_RETRY_AFTER: Final = 600.0

_NOT_HTTP_PREFIX: Final = "the response is not as HTTP wants it: "
_CLOSED_MESSAGE: Final = "the server closed the connection"
_RETRYABLE: Final = frozenset({429, 502, 503, 504})
#: Message for a rejected certificate of the server or the client.
TLS_FAILED: Final = "TLS failed"
#: http.client's message if a proxy opens no tunnel.
_TUNNEL_ERROR_PATTERN: Final = re.compile(r"Tunnel connection failed: (\d+) ?(.*)", re.DOTALL)

#: Errors by exception, of which the first match counts. Each row contains the class of the exception, a part of its
#: text if the class is ambiguous, reason and text of the error, and whether a retry may succeed. The exception's text
#: replaces {} in the text of the error. Rows of http.client's exceptions do not use {}, because these exceptions quote
#: the response.
_ERROR_RULES: Final[tuple[tuple[type[BaseException], str, str, str, bool], ...]] = tuple(
    (exception_class, text_part, reason, _NOT_HTTP_PREFIX + text if reason == "bad_answer" else text, retryable)
    for exception_class, text_part, reason, text, retryable in (
        (InvalidChunkLength, "", "bad_answer", "a chunk of its body has no size", False),
        (ProtocolError, "exceeded maximum", "bad_answer", "a line between its chunks is too long", False),
        (ProtocolError, "Response ended prematurely", "truncated", "the response ends too early", True),
        (http.client.IncompleteRead, "", "truncated", "the response ends too early", True),
        (http.client.RemoteDisconnected, "", "connection_failed", _CLOSED_MESSAGE, True),
        (NotHttpError, "", "bad_answer", "{}", False),
        (http.client.BadStatusLine, "", "bad_answer", "its first line is no status line", False),
        (http.client.UnknownProtocol, "", "bad_answer", "its version of HTTP is not known", False),
        (http.client.LineTooLong, "", "bad_answer", "a line of its headers is too long", False),
        (http.client.HTTPException, "", "bad_answer", "it has too many headers", False),
        (InvalidHeader, "", "bad_answer", "a header has a bad value", False),
        (NameResolutionError, "", "connection_failed", "the host name cannot be resolved", True),
        (LocationParseError, "", "connection_failed", "the host name is invalid", False),
        # Not retryable, because a retry within the cycle would fail, too.
        (SSLError, "", "connection_failed", f"{TLS_FAILED}: {{}}", False),
    )
)

_MEDIA_TYPE_PATTERN: Final = re.compile(r"[a-z]+/[a-z0-9.+-]{1,60}")
#: Fields of an XML error of AWS.
_XML_ERROR_PATTERN: Final = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>")

#: Function that takes the status and the first bytes of an error response. It returns `(reason, text)` if they are more
#: specific than the status, and None otherwise.
Explain = Callable[[int, bytes], tuple[str, str] | None]


def make_excerpt(body: bytes, secrets: Iterable[str] = ()) -> str:
    """Return the first characters of a response for a message. The `secrets` that were sent are masked."""
    return clean(mask_secrets(body.decode(errors="replace"), *secrets), EXCERPT_CHARACTERS)


def make_status_error(
    request_text: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    secrets: Iterable[str] = (),
    explain: Explain | None = None,
    *,
    may_hold_token: bool = False,
) -> HttpError:
    """Return the error for a status other than 200.

    `request_text` is method and URL, `body` contains the first bytes of the body, and `secrets` are the sent values to
    mask. If `may_hold_token` is True, the error quotes only known fields of the body.
    """
    explanation = explain(status, body) if explain is not None else None
    if explanation is not None:
        # Mask secrets here, because they can be found only in the decoded text.
        reason, text = explanation[0], clean(mask_secrets(explanation[1], *secrets), _MAX_EXPLANATION_CHARACTERS)
    elif 300 <= status < 400:
        reason, text = "redirect", "redirects are not followed; give the final URL"
    elif 200 < status < 300:
        # Some frameworks send 201 for POST by default. A 204 has no body, and a 206 only a part of it.
        reason, text = "http_error", "only status 200 counts as a response; have the server send 200"
    else:
        reason = "unauthorized" if status in (401, 403) else "http_error"
        if may_hold_token:
            text = describe_token_response(status, headers.get("Content-Type", ""), body, secrets)
        else:
            text = make_excerpt(body, secrets)
        if status in _CREDENTIAL_STATUSES:
            challenge = "" if "error" in text else _find_challenge(headers, secrets)
            text = "; ".join(filter(None, (text, challenge, _describe_clock_skew(headers.get("Date")))))
    message = f"{request_text}: HTTP {status}" + (f": {text}" if text else "")
    pause = parse_retry_after(headers.get("Retry-After"), headers.get("Date")) if status in _RETRYABLE else None
    return HttpError(
        reason,
        message,
        status=status,
        retryable=status in _RETRYABLE,
        retry_after=pause,
    )


def _find_challenge(headers: Mapping[str, str], secrets: Iterable[str]) -> str:
    """Return the error about a token in WWW-Authenticate (RFC 6750), which is often missing in the body."""
    challenge = headers.get("WWW-Authenticate", "")
    return make_excerpt(challenge.encode(errors="replace"), secrets) if "error" in challenge else ""


def _describe_clock_skew(date: str | None) -> str:
    """Describe the skew of the server's clock; empty if it is too small to make a token or signature invalid.

    `date` is the server's Date header.
    """
    try:
        seconds = _compute_seconds_until(date or "")
    except (ValueError, OverflowError):
        return ""
    if abs(seconds) < _MIN_REPORTED_SKEW:
        return ""
    direction = "ahead of" if seconds > 0 else "behind"
    return (
        f"the server's clock is {abs(seconds):.0f} s {direction} that of who asks, so tokens and signatures may not "
        "count"
    )


def parse_retry_after(value: str | None, date: str | None = None) -> float | None:
    """Return the seconds to wait from a Retry-After header; None if it is absent or invalid.

    The header is a number or an HTTP date. `date` is the server's Date header, because a date in Retry-After is a time
    of the server's clock, which may differ from this machine's clock.
    """
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        seconds = float(value[:9])
    else:
        try:
            seconds = _compute_seconds_until(value)
        except (ValueError, OverflowError):
            return None
        with contextlib.suppress(ValueError, OverflowError):
            seconds -= _compute_seconds_until(date or "")
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER)


def _compute_seconds_until(date: str) -> float:
    """Return the seconds until an HTTP date. Raises ValueError or OverflowError if the date is invalid."""
    parsed_date = email.utils.parsedate_to_datetime(date)
    # HTTP dates are GMT (RFC 9110, 5.6.7). For dates without a zone Python would assume this machine's zone.
    return (parsed_date if parsed_date.tzinfo else parsed_date.replace(tzinfo=UTC)).timestamp() - time.time()


def make_timeout_error(request_text: str, seconds: float) -> HttpError:
    """Return the error for a response that was incomplete after `seconds`.

    The error is retryable, because a retry may be faster. The caller checks whether enough time remains for it.
    """
    seconds_text = f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
    return HttpError("timeout", f"{request_text}: no complete response within {seconds_text} s", retryable=True)


def make_size_error(request_text: str, max_bytes: int, problem: str = "is longer") -> HttpError:
    """Return the error for a response that exceeds `max_bytes`."""
    return HttpError("too_large", f"{request_text}: the response {problem}, more than the {max_bytes} bytes allowed")


def make_exchange_error(request_text: str, error: Exception, max_bytes: int) -> HttpError:
    """Return the error for an exception of an exchange, except timeouts.

    The exception is one of this package, of requests, of urllib3 or of the operating system. Violations of HTTP are not
    retryable, because the server will repeat them. Disconnections are retryable, because the server may recover.
    """
    causes = list(_iterate_causes(error))
    for cause in causes:
        text = str(cause)
        if isinstance(cause, TooMuchError):
            return make_size_error(request_text, max_bytes)
        if tunnel_error := _TUNNEL_ERROR_PATTERN.fullmatch(text):
            status, phrase = int(tunnel_error[1]), clean(tunnel_error[2], EXCERPT_CHARACTERS)
            message = f"{request_text}: the proxy answers {status} {phrase}".rstrip()
            return HttpError("connection_failed", message, retryable=status in _RETRYABLE)
        for exception_class, text_part, reason, template, retryable in _ERROR_RULES:
            if isinstance(cause, exception_class) and text_part in text:
                return HttpError(
                    reason, f"{request_text}: {template.format(clean(text, EXCERPT_CHARACTERS))}", retryable=retryable
                )
    default_text = _CLOSED_MESSAGE
    if any(isinstance(cause, ConnectTimeoutError) for cause in causes):
        default_text = "the server does not accept the connection"
    system_texts = [cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror]
    text = clean([default_text, *system_texts][-1], EXCERPT_CHARACTERS)
    return HttpError("connection_failed", f"{request_text}: {text}", retryable=True)


def _iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and the errors that caused it.

    Libraries store causes in `args`, `reason`, `__cause__` and `__context__`.
    """
    visited_ids: set[int] = set()
    candidates: list[object] = [error]
    while candidates:
        cause = candidates.pop(0)
        if not isinstance(cause, BaseException) or id(cause) in visited_ids:
            continue
        visited_ids.add(id(cause))
        yield cause
        candidates += [*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__]


def describe_token_response(status: int, content_type: str, body: bytes, secrets: Iterable[str] = ()) -> str:
    """Describe the response of a token server without quoting tokens.

    Return the fields of an error, in which the sent `secrets` are masked. Without such fields, return the media type
    and the length of the response.
    """
    error_text = _extract_error_fields(body.decode(errors="replace")) if status >= 400 else ""
    if error_text:
        return clean(mask_secrets(error_text, *secrets), _MAX_TOKEN_ERROR_CHARACTERS)
    media_type = content_type.partition(";")[0].strip().lower()
    media_type = media_type if _MEDIA_TYPE_PATTERN.fullmatch(media_type) else "of no known type"
    return f"a response ({media_type}, {len(body)} bytes) that is not shown, as it may hold a token"


def _extract_error_fields(text: str) -> str:
    try:
        document = _lower_field_names(json.loads(text))
    except (ValueError, RecursionError):
        fields = _XML_ERROR_PATTERN.search(text)
        return "" if fields is None else ": ".join(fields.groups())
    # The first two fields are those of RFC 6749, 5.2. Clouds use the other fields, and some nest them in `error`.
    field_names = "error", "error_description", "code", "message"
    document = _lower_field_names(document.get("error")) or document
    return ": ".join(str(document[name]) for name in field_names if isinstance(document.get(name), str | int))


def _lower_field_names(document: Any) -> dict[str, Any]:
    return {name.lower(): value for name, value in document.items()} if isinstance(document, dict) else {}
