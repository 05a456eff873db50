"""Errors of a scorer.

ScorerError   the scorer is defined wrongly; raised at its definition, for its author
Unavailable   raised by a scoring function: a dependency is unavailable (503)
RefusedError  a request is answered with an error status; within the library only
"""

from __future__ import annotations


class ScorerError(Exception):
    """A scorer is defined wrongly. The message names the argument or environment variable and valid values."""


class Unavailable(Exception):  # noqa: N818  (part of the API, the name reads as its meaning)
    """A dependency of the scoring function is unavailable: the client gets 503, this text and Retry-After.

    The text is sent unchanged. `retry_after` is in seconds; an agent with that much time left retries.
    """

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RefusedError(Exception):
    """A request that gets `status` and the text `detail` instead of scores."""

    def __init__(self, status: int, detail: str, *, headers: dict[str, str] | None = None, error_id: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.error_id = error_id
