"""Interface of the store of Secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dsf.api.authentication import CaKind
from dsf.api.tokenhosts import NO_HOSTS, TokenHosts


class Use(NamedTuple):
    """Purpose of reading a Secret."""

    #: The servers that get what is read, or something that is made of it: it must be released for all of them.
    urls: Sequence[str]
    #: Servers that the owner of the binding released.
    hosts: TokenHosts = NO_HOSTS
    #: Whether it is sent. A private key is not: it proves.
    is_sent: bool = True


class AccountToken(NamedTuple):
    """A token of the agent's own account."""

    value: str
    #: For how long it is valid from now on.
    seconds: float


class SecretSource(Protocol):
    """Where Secrets come from. Implementations are thread-safe, and say what is there now."""

    def secret(self, name: str, key: str, use: Use) -> bytes:
        """What a key of a Secret holds. Raises SecretError."""

    def certificates(self, kind: CaKind, name: str, key: str) -> bytes:
        """The certificates, and nothing else, in a key of a ConfigMap or a Secret. Raises SecretError."""

    def account_token(self, audience: str, seconds: int) -> AccountToken:
        """A new token of the agent's own account. Raises SecretError."""


class SecretError(Exception):
    """There is no usable secret; the message names Secret and key, and never what is in them."""

    def __init__(self, message: str, reason: str = "secret_missing") -> None:
        super().__init__(message)
        #: `secret_missing`, `secret_refused`, `secret_invalid` or `auth_failed`, the reason of the cycle that fails.
        self.reason = reason
