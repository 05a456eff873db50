"""Sends requests to a scoring API, with the deadlines, limits and rules of the framework's HTTP client."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dsf import http
from dsf.api.remoteconfig import CHECK_TIMEOUT
from dsf.api.scoringresponse import MAX_RESPONSE_BYTES
from dsf.api.types import SourceMethod
from dsf.errors import HttpError
from dsf.http.access import make_bearer_access
from dsf.sources.prometheus import query_range

#: Seconds that the hub waits for /healthz and /config.
HUB_TIMEOUT: float = CHECK_TIMEOUT
#: Maximum bytes of a response.
MAX_BYTES: int = MAX_RESPONSE_BYTES


@dataclass(frozen=True, slots=True)
class Reply:
    """A response with status 200, or why there is none."""

    seconds: float
    body: bytes = b""
    error: HttpError | None = None

    @property
    def status(self) -> int | None:
        """HTTP status; None without a response."""
        return 200 if self.error is None else self.error.status

    @property
    def is_redirect(self) -> bool:
        """True if the response is a redirect."""
        return self.error is not None and self.error.reason == "redirect"

    @property
    def is_unauthorized(self) -> bool:
        """True if the API requires a token, or another token."""
        return self.error is not None and self.error.reason == "unauthorized"


class ScoringApiTarget:
    """A scoring API. `timeout` is in seconds and for each scoring request."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout

    def get(self, url: str) -> Reply:
        """Send GET as the hub does, without a token."""
        return _measure_reply(HUB_TIMEOUT, lambda deadline: http.get(url, deadline=deadline, max_bytes=MAX_BYTES))

    def run_range_query(self, url: str, params: Mapping[str, str | int], method: SourceMethod) -> Reply:
        """Send a range query as an agent does, without a token."""
        return _measure_reply(
            HUB_TIMEOUT,
            lambda deadline: query_range(url, params, method, deadline=deadline, max_bytes=MAX_BYTES),
        )

    def post(self, url: str, body: bytes, token: str | None) -> Reply:
        """Send POST as an agent does."""
        return _measure_reply(
            self.timeout,
            lambda deadline: http.post(
                url, body, access=make_bearer_access(token), deadline=deadline, max_bytes=MAX_BYTES
            ),
        )

    def content_type(self, url: str, body: bytes | None, token: str | None) -> str:
        """Return the media type of a response, which the framework itself ignores.

        Raises HttpError without a response.
        """
        deadline = time.monotonic() + self.timeout
        response = http.probe(url, deadline=deadline, max_bytes=MAX_BYTES, body=body, access=make_bearer_access(token))
        return response.content_type.partition(";")[0].strip().lower()


def _measure_reply(seconds: float, send_request: Callable[[float], bytes]) -> Reply:
    started_at = time.monotonic()
    try:
        body = send_request(started_at + seconds)
    except HttpError as error:
        return Reply(time.monotonic() - started_at, error=error)
    return Reply(time.monotonic() - started_at, body)
