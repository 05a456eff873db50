"""Collects the credentials for a server. The functions of the authentication methods add them one after another."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from http import HTTPStatus
from urllib.parse import quote, quote_plus

import requests

from dsf.api.authentication import Value
from dsf.api.fieldtypes import SecretKeyRef, is_header_value
from dsf.api.urls import TokenHosts
from dsf.auth.secrets import SecretError, SecretSource, Token, Use
from dsf.auth.tokencache import TokenCache
from dsf.errors import HttpError
from dsf.http.access import Access, Pairs, TlsOptions, is_unauthorized
from dsf.text import MASK


class CredentialsBuilder:
    """Builds the `Access` for requests to a server."""

    def __init__(
        self,
        url: str,
        deadline: float,
        hosts: TokenHosts,
        source: SecretSource,
        tokens: TokenCache,
        tls: TlsOptions,
        rejected_token: str | None = None,
        proxy: str | None = None,
    ) -> None:
        """Start to build the credentials for `url`.

        `deadline` (time.monotonic()) limits requests to token servers. `hosts` are the servers that may receive the
        Secrets. `tls` contains no client certificate yet. `rejected_token` is a cached token that the server rejected,
        and `proxy` the URL of a configured proxy.
        """
        self.url = url
        self.deadline = deadline
        self.source = source
        self.tokens = tokens
        self.rejected_token = rejected_token
        self.tls = tls
        #: True to bypass all proxies.
        self.is_direct = False
        self.sign: Callable[[requests.PreparedRequest], None] | None = None
        #: Token that is renewed after a response for which `is_outdated` is True; empty without such a token.
        self.renewable_token = ""
        self.is_outdated: Callable[[HttpError], bool] = is_unauthorized
        self._hosts = hosts
        self._proxy = proxy
        self._headers: list[tuple[str, str]] = []
        self._params: list[tuple[str, str]] = []
        self._secrets: list[str] = []
        self._descriptions: list[str] = []

    def add_header(self, name: str, value: str, *, masked_value: str) -> None:
        """Add a header; `masked_value` is its value for display."""
        self._headers.append((name, value))
        self._descriptions.append(f"{name}: {masked_value}")

    def add_parameter(self, name: str, value: str, *, masked_value: str) -> None:
        """Add a URL parameter; `masked_value` is its value for display."""
        self._params.append((name, value))
        self._descriptions.append(f"?{name}={masked_value}")

    def add_bearer(self, token: str) -> None:
        """Add the header with a bearer token, and mask the token in messages."""
        self.hide(token)
        self.add_header("Authorization", f"Bearer {token}", masked_value=f"Bearer {MASK}")

    def add_token(self, key: Hashable, request_token: Callable[[float], Token]) -> None:
        """Add a bearer token that expires; arguments and errors are the same as for `TokenCache.get_token`."""
        self.renewable_token = self.tokens.get_token(key, request_token, self.deadline, self.rejected_token)
        self.add_bearer(self.renewable_token)

    def add_description(self, line: str) -> None:
        """Add a line for display."""
        self._descriptions.append(line)

    def hide(self, *secrets: str) -> None:
        """Mask these values in messages."""
        self._secrets += [secret for secret in secrets if secret and secret not in self._secrets]

    @property
    def masked_values(self) -> tuple[str, ...]:
        """The values that messages mask so far."""
        return tuple(self._secrets)

    def make_token_server_access(self, headers: Pairs, *, is_direct: bool = False) -> Access:
        """Return the Access for a token server, whose certificate is always verified.

        `is_direct` bypasses all proxies.
        """
        return Access(
            headers, tls=TlsOptions(self.tls.ca), proxy=self._proxy, is_direct=is_direct, secrets=self.masked_values
        )

    def read_bytes(self, ref: SecretKeyRef, *further_urls: str, is_sent: bool = True) -> bytes:
        """Return the value of a Secret for the server, and for the servers of `further_urls`. Raises SecretError.

        `is_sent` is False for a private key, which the TLS handshake uses without sending it.
        """
        urls = (self.url, *further_urls)
        # With verified TLS, a proxy sees only the server's name. Otherwise the proxy can read the Secret, so that the
        # Secret must be allowed for the proxy, too.
        is_encrypted = self.tls.verify and all(url.lower().startswith("https://") for url in urls)
        if is_sent and self._proxy is not None and not is_encrypted:
            urls = (*urls, self._proxy)
        return self.source.get_secret(ref.name, ref.key, Use(urls, self._hosts, is_sent))

    def read_text(self, ref: SecretKeyRef, *further_urls: str) -> str:
        """Return the value of a Secret as a stripped line of printable ASCII, and mask it in messages.

        Raises SecretError, also if the value has other characters or more than 16 KiB.
        """
        data = self.read_bytes(ref, *further_urls)
        try:
            text = data.decode("ascii").strip()
            if len(text) > 16 * 1024 or not is_header_value(text):
                raise ValueError
        except ValueError:
            raise SecretError(
                f"key {ref.key!r} of Secret {ref.name!r} cannot be sent: expected one line of printable ASCII",
                "secret_invalid",
            ) from None
        # Also mask the encodings of the value in forms, in URLs and in the header of OAuth2.
        self.hide(text, quote(text, safe=""), quote_plus(text))
        return text

    def read_value(self, value: Value, *further_urls: str) -> tuple[str, str]:
        """Return a value and its text for display, which is masked if the value is from a Secret.

        Raises SecretError.
        """
        if value.secret_ref is not None:
            return self.read_text(value.secret_ref, *further_urls), MASK
        return value.value or "", value.value or ""

    def build(self, renew: Callable[[str, float], Access]) -> Access:
        """Return the Access. `renew` gets a rejected token and a deadline, and builds an Access with another token."""
        token = self.renewable_token

        def renew_access(deadline: float) -> Access:
            try:
                renewed_access = renew(token, deadline)
            except SecretError as error:
                # Report the status 401 of the response that rejected the token.
                raise HttpError(error.reason, str(error), status=HTTPStatus.UNAUTHORIZED) from None
            # Messages about requests with the rejected token must also mask the renewed token.
            self.hide(*renewed_access.secrets)
            return renewed_access

        return Access(
            headers=tuple(self._headers),
            params=tuple(self._params),
            tls=self.tls,
            proxy=self._proxy,
            is_direct=self.is_direct,
            secrets=self._secrets,
            display_lines=tuple(self._descriptions),
            renew=renew_access if token else None,
            is_outdated=self.is_outdated,
            sign=self.sign,
        )
