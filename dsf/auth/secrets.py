"""Interface of the store of Secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dsf.api.authentication import CaKind
from dsf.api.tokenhosts import NO_HOSTS, TokenHosts


class Use(NamedTuple):
    """Purpose of reading a Secret."""

    #: The servers that get the value, or one derived from it: it must be released for all of them.
    urls: Sequence[str]
    #: Servers that the owner of the binding released.
    hosts: TokenHosts = NO_HOSTS
    #: Whether the value is sent. A private key is not.
    is_sent: bool = True


class AccountToken(NamedTuple):
    """A token of the agent's own account."""

    value: str
    #: Validity from now on.
    seconds: float


class SecretSource(Protocol):
    """Store of Secrets. Implementations are thread-safe and return current values."""

    def secret(self, name: str, key: str, use: Use) -> bytes:
        """Value of a Secret's key. Raises SecretError."""

    def certificates(self, kind: CaKind, name: str, key: str) -> bytes:
        """The certificates, and nothing else, in a key of a ConfigMap or a Secret. Raises SecretError."""

    def account_token(self, audience: str, seconds: int, until: float) -> AccountToken:
        """A new token of the agent's own account. Raises SecretError."""


class SecretError(Exception):
    """There is no usable secret; the message names Secret and key, never the value."""

    def __init__(self, message: str, reason: str = "secret_missing") -> None:
        super().__init__(message)
        #: `secret_missing`, `secret_refused`, `secret_invalid` or `auth_failed`, the reason of the cycle that fails.
        self.reason = reason
