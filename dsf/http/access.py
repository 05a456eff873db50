"""Access to one server: credentials, server verification, and the secrets to mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import requests

from dsf.errors import HttpError

#: `(name, value)`, in the order in which they are sent.
Pairs = tuple[tuple[str, str], ...]


def is_unauthorized(error: HttpError) -> bool:
    """Whether the server answered 401."""
    return error.status == HTTPStatus.UNAUTHORIZED


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Server verification and client certificate. All files are PEM."""

    #: CAs trusted in addition to those for all servers.
    ca: bytes = b""
    #: The client's certificate with its chain, and its private key; both or none.
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    #: The name that the server's certificate must have; empty: the host of the URL.
    server_name: str = ""
    #: Whether the server's certificate is verified.
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials and connection options of a request."""

    headers: Pairs = field(default=(), repr=False)
    params: Pairs = field(default=(), repr=False)
    tls: TlsOptions | None = None
    #: URL of the proxy; None: by the usual environment variables. Direct: without any.
    proxy: str | None = None
    is_direct: bool = False
    #: To be masked in messages: all values sent from Secrets. A renewal adds the newer ones.
    secrets: Sequence[str] = field(default=(), repr=False)
    #: For display, one line each: what is sent, with `***` for secrets.
    shown: tuple[str, ...] = ()
    #: After an answer that `is_outdated`, once: a renewed Access, by the deadline (time.monotonic()). Raises HttpError.
    renew: Callable[[float], Access] | None = field(default=None, repr=False)
    #: Whether this answer says that the token is no longer accepted.
    is_outdated: Callable[[HttpError], bool] = field(default=is_unauthorized, repr=False)
    #: Adds a signature over the whole request.
    sign: Callable[[requests.PreparedRequest], None] | None = field(default=None, repr=False)

    @property
    def is_secret(self) -> bool:
        """Whether secrets are sent, which no proxy may read."""
        return bool(self.secrets)

    def signed(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """The request, with its signature where there is one; as an `auth` of requests."""
        if self.sign is not None:
            self.sign(request)
        return request


#: No credentials.
PLAIN: Final = Access()
#: The same for a server of the local network, without a proxy.
DIRECT: Final = Access(is_direct=True)


def bearer(token: str | None) -> Access:
    """With `Authorization: Bearer`; None sends none."""
    if not token:
        return PLAIN
    return Access((("Authorization", f"Bearer {token}"),), secrets=(token,), shown=("Authorization: Bearer ***",))
