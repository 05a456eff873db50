"""Errors of a scorer.

ScorerError   the scorer is put together wrongly; raised while it is, for the person who writes it
Unavailable   raised by a scoring function: something it needs is away for now (503)
RefusedError  a request is answered with an error status; within the library only
"""

from __future__ import annotations


class ScorerError(Exception):
    """A scorer is put together wrongly. The message names the argument or environment variable and what it may be."""


class Unavailable(Exception):  # noqa: N818  (it is raised by people, and reads as what it says)
    """Something that the scoring function needs is away: the client gets 503, this text and Retry-After.

    The text goes to the client as it is. `retry_after` is in seconds; an agent that has so much time left tries again.
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
