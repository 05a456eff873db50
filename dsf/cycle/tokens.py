"""What the stages need of the place where tokens are."""

from __future__ import annotations

from typing import Protocol


class TokenSource(Protocol):
    """Where tokens come from. Implementations are thread-safe."""

    def token(self, name: str, key: str, url: str) -> str | None:
        """The token as of now, to be sent to `url`; None when the scorer names no Secret. Raises SecretError."""


class SecretError(Exception):
    """There is no usable token; the message names Secret and key, and never what is in them."""

    def __init__(self, message: str, reason: str = "secret_missing") -> None:
        super().__init__(message)
        #: `secret_missing` or `secret_refused`, the reason of the cycle that fails.
        self.reason = reason
