"""Interface of the store of Secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dsf.api.authentication import CaKind
from dsf.api.urls import NO_HOSTS, TokenHosts
from dsf.errors import HttpError


class Use(NamedTuple):
    """Purpose of reading a Secret."""

    #: The servers that receive the value or a derived value, and that must all be allowed.
    urls: Sequence[str]
    #: The servers that a ScoringAuthentication allows.
    hosts: TokenHosts = NO_HOSTS
    #: True if the value is sent; False for a private key.
    is_sent: bool = True


class Token(NamedTuple):
    """A token, and its remaining lifetime in seconds."""

    value: str
    seconds: float


class SecretSource(Protocol):
    """Interface of a store of Secrets. Implementations are thread-safe and return current values."""

    def get_secret(self, name: str, key: str, use: Use) -> bytes:
        """Return the value of a Secret's key. Raises SecretError."""

    def get_certificates(self, kind: CaKind, name: str, key: str) -> bytes:
        """Return the certificates in a key of a ConfigMap or Secret, without other content. Raises SecretError."""

    def request_account_token(self, audience: str, seconds: int, deadline: float) -> Token:
        """Request a new token of the agent's own ServiceAccount. Raises SecretError."""


class SecretError(HttpError):
    """Error of a missing or unusable secret. The message names Secret and key, but never contains the value.

    The reason is `secret_missing`, `secret_refused`, `secret_invalid`, `auth_failed` or `auth_unsupported`.
    """

    def __init__(self, message: str, reason: str = "secret_missing") -> None:
        super().__init__(reason, message)
