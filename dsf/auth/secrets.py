"""Interface of the stores from which an agent reads Secrets, CAs and tokens of its ServiceAccount."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dsf.api.authentication import CaKind
from dsf.api.urls import NO_HOSTS, TokenHosts
from dsf.errors import HttpError


class Use(NamedTuple):
    """The servers for which a Secret is read; the store checks that all of them may receive it."""

    #: URLs of the servers that receive the value or a derived value.
    urls: Sequence[str]
    #: Servers that the ScoringAuthentication allows.
    hosts: TokenHosts = NO_HOSTS
    #: True if the value is sent; False for a private key.
    is_sent: bool = True


class Token(NamedTuple):
    """A token, and its remaining lifetime in seconds."""

    value: str
    seconds: float


class SecretSource(Protocol):
    """Interface of a Secret store. Implementations are thread-safe and return current values."""

    def get_secret(self, name: str, key: str, use: Use) -> bytes:
        """Return the value of a Secret's key. Raises SecretError, also if a server in `use` may not receive it."""

    def get_certificates(self, kind: CaKind, name: str, key: str) -> bytes:
        """Return the PEM certificates in a key of a ConfigMap or Secret, without other content. Raises SecretError."""

    def request_account_token(self, audience: str, seconds: int, deadline: float) -> Token:
        """Request a new token of the agent's own ServiceAccount, valid for `seconds`. Raises SecretError.

        `deadline` (time.monotonic()) limits the request.
        """


class SecretError(HttpError):
    """A Secret is missing, cannot be used, or may not be sent. The message names Secret and key, never the value.

    The reason is `secret_missing`, `secret_refused`, `secret_invalid`, `auth_failed` or `auth_unsupported`.
    """

    def __init__(self, message: str, reason: str = "secret_missing") -> None:
        super().__init__(reason, message)
