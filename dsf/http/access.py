"""Access to one server: credentials, server verification, and the secrets to mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import requests

#: `(name, value)`, in the order in which they are sent.
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Tls:
    """How a server proves who it is, and this process to it. All files are PEM."""

    #: CAs that are trusted besides those of all other servers.
    ca: bytes = b""
    #: The client's certificate with its chain, and its private key; both or none.
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    #: The name that the server's certificate must have; empty: the host of the URL.
    server_name: str = ""
    #: Whether the server's certificate is looked at.
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Access:
    """What is sent with a request besides what is asked."""

    headers: Pairs = field(default=(), repr=False)
    params: Pairs = field(default=(), repr=False)
    tls: Tls | None = None
    #: The proxy to go through; None is by the variables that all programs know. Direct is without any.
    proxy: str | None = None
    is_direct: bool = False
    #: What must be in no message: all that is sent of Secrets. A renewal adds to it what the newer one sends.
    secrets: Sequence[str] = field(default=(), repr=False)
    #: For people, one line each: what is sent, with `***` for what is secret.
    shown: tuple[str, ...] = ()
    #: After a 401, once: a newer one, got before the deadline (time.monotonic()). Raises HttpError.
    renew: Callable[[float], Access] | None = field(default=None, repr=False)
    #: Adds to the request what depends on all of it: a signature.
    sign: Callable[[requests.PreparedRequest], None] | None = field(default=None, repr=False)

    @property
    def is_secret(self) -> bool:
        """Whether something secret is sent, which no proxy may read."""
        return bool(self.secrets)


#: Nothing but the question.
PLAIN: Final = Access()
#: The same to a server of the own network, which no proxy stands before.
DIRECT: Final = Access(is_direct=True)


def bearer(token: str | None) -> Access:
    """With `Authorization: Bearer`; None sends none."""
    if not token:
        return PLAIN
    return Access((("Authorization", f"Bearer {token}"),), secrets=(token,), shown=("Authorization: Bearer ***",))
