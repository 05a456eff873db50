"""Builder of the credentials for one server: the methods write into it in sequence."""

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
    """Builder of the Access that a request carries."""

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
        """`url` is the request's URL, `hosts` are the servers that the Secrets are bound to, `tls` has no client
        certificate. `rejected_token` is a token that the server rejected, `proxy` a configured proxy."""
        self.url = url
        self.deadline = deadline
        self.source = source
        self.tokens = tokens
        self.rejected_token = rejected_token
        self.tls = tls
        #: Whether to bypass all proxies.
        self.is_direct = False
        self.sign: Callable[[requests.PreparedRequest], None] | None = None
        #: The token that can be renewed after an answer that `is_outdated`; empty if there is none.
        self.renewable = ""
        self.is_outdated: Callable[[HttpError], bool] = is_unauthorized
        self._hosts = hosts
        self._proxy = proxy
        self._headers: list[tuple[str, str]] = []
        self._params: list[tuple[str, str]] = []
        self._secrets: list[str] = []
        self._shown: list[str] = []

    def header(self, name: str, value: str, *, masked_value: str) -> None:
        """Send this header; `masked_value` is its value for display."""
        self._headers.append((name, value))
        self._shown.append(f"{name}: {masked_value}")

    def parameter(self, name: str, value: str, *, masked_value: str) -> None:
        """Send this URL parameter."""
        self._params.append((name, value))
        self._shown.append(f"?{name}={masked_value}")

    def bearer(self, token: str) -> None:
        """Send this token."""
        self.hide(token)
        self.header("Authorization", f"Bearer {token}", masked_value=f"Bearer {MASK}")

    def token(self, key: Hashable, get: Callable[[float], Token]) -> None:
        """Send a token that expires; arguments and errors are those of `TokenCache.token`."""
        self.renewable = self.tokens.token(key, get, self.deadline, self.rejected_token)
        self.bearer(self.renewable)

    def shows(self, line: str) -> None:
        """Add a line for display."""
        self._shown.append(line)

    def hide(self, *secrets: str) -> None:
        """Mask these in messages."""
        self._secrets += [secret for secret in secrets if secret and secret not in self._secrets]

    @property
    def hidden(self) -> tuple[str, ...]:
        """The values masked so far."""
        return tuple(self._secrets)

    def to_token_server(self, headers: Pairs, *, is_direct: bool = False) -> Access:
        """The Access for a token server, whose certificate is always verified.

        `is_direct` bypasses all proxies.
        """
        return Access(headers, tls=TlsOptions(self.tls.ca), proxy=self._proxy, is_direct=is_direct, secrets=self.hidden)

    def bytes(self, ref: SecretKeyRef, *also: str, is_sent: bool = True) -> bytes:
        """The value of a Secret, for the server and for those of the URLs `also`. Raises SecretError."""
        urls = (self.url, *also)
        # Over verified TLS a proxy sees only the server's name; otherwise it can read everything.
        is_hidden = self.tls.verify and all(url.lower().startswith("https://") for url in urls)
        if is_sent and self._proxy is not None and not is_hidden:
            urls = (*urls, self._proxy)
        return self.source.secret(ref.name, ref.key, Use(urls, self._hosts, is_sent))

    def text(self, ref: SecretKeyRef, *also: str) -> str:
        """The same as one stripped line of printable ASCII; it is masked in messages."""
        data = self.bytes(ref, *also)
        try:
            text = data.decode("ascii").strip()
            if len(text) > 16 * 1024 or not is_header_value(text):
                raise ValueError
        except ValueError:
            raise SecretError(
                f"key {ref.key!r} of Secret {ref.name!r} cannot be sent: expected one line of printable ASCII",
                "secret_invalid",
            ) from None
        # Hides it as encoded in a form, in a URL, and in OAuth2's header, too.
        self.hide(text, quote(text, safe=""), quote_plus(text))
        return text

    def value(self, value: Value, *also: str) -> tuple[str, str]:
        """A value, and its text for display."""
        if value.secret_ref is not None:
            return self.text(value.secret_ref, *also), MASK
        return value.value or "", value.value or ""

    def done(self, renew: Callable[[str, float], Access]) -> Access:
        """The finished Access. `renew` makes another one without the refused token, before a deadline."""
        token = self.renewable

        def renewed(deadline: float) -> Access:
            try:
                newer = renew(token, deadline)
            except SecretError as error:
                # With the status of the answer to the older one, which is shown.
                raise HttpError(error.reason, str(error), status=HTTPStatus.UNAUTHORIZED) from None
            # Requests with the older one must also mask the newer one.
            self.hide(*newer.secrets)
            return newer

        return Access(
            headers=tuple(self._headers),
            params=tuple(self._params),
            tls=self.tls,
            proxy=self._proxy,
            is_direct=self.is_direct,
            secrets=self._secrets,
            shown=tuple(self._shown),
            renew=renewed if token else None,
            is_outdated=self.is_outdated,
            sign=self.sign,
        )
