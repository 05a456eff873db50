"""Interface of the store of Secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dsf.api.authentication import CaKind
from dsf.api.urls import NO_HOSTS, TokenHosts
from dsf.errors import HttpError


class Use(NamedTuple):
    """Purpose of reading a Secret."""

    #: The servers that get the value, or one derived from it: it must be released for all of them.
    urls: Sequence[str]
    #: Servers that the owner of the binding released.
    hosts: TokenHosts = NO_HOSTS
    #: Whether the value is sent. A private key is not.
    is_sent: bool = True


class Token(NamedTuple):
    """A token, and its lifetime in seconds from now on."""

    value: str
    seconds: float


class SecretSource(Protocol):
    """Store of Secrets. Implementations are thread-safe and return current values."""

    def secret(self, name: str, key: str, use: Use) -> bytes:
        """Value of a Secret's key. Raises SecretError."""

    def certificates(self, kind: CaKind, name: str, key: str) -> bytes:
        """The certificates, and nothing else, in a key of a ConfigMap or a Secret. Raises SecretError."""

    def account_token(self, audience: str, seconds: int, until: float) -> Token:
        """A new token of the agent's own account. Raises SecretError."""


class SecretError(HttpError):
    """A secret is missing or unusable; the message names Secret and key, never the value.

    The reason is `secret_missing`, `secret_refused`, `secret_invalid`, `auth_failed` or `auth_unsupported`.
    """

    def __init__(self, message: str, reason: str = "secret_missing") -> None:
        super().__init__(reason, message)
