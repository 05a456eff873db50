"""Exchange of the agent's ServiceAccount token for a cloud token (workload identity).

The cloud's library builds the requests and reads the responses. The requests go through this project's HTTP client,
with its deadline, trust, proxies and limits, and only to the servers of the method.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import requests
from requests.adapters import BaseAdapter

from dsf import http
from dsf.api.fieldtypes import is_header_value
from dsf.api.urls import get_base_url
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.secrets import Token
from dsf.errors import HttpError
from dsf.text import clean, mask_secrets

_MAX_BYTES: Final = 256 * 1024
#: Lifetime in seconds of a token of the agent's ServiceAccount; it is used once.
_ACCOUNT_SECONDS: Final = 600
#: Maximum lifetime of a token, and the lifetime of a token that seems to have expired.
_MOST_SECONDS: Final = 24 * 3600.0
_LEAST_SECONDS: Final = 300.0
#: Headers that the client sets itself.
_OWN_HEADERS: Final = frozenset(
    {"host", "content-length", "content-type", "connection", "accept-encoding", "user-agent"}
)


class Cloud:
    """A cloud, for one request."""

    def __init__(self, name: str, builder: CredentialsBuilder, servers: Sequence[str]) -> None:
        """Prepare a request to a cloud; `servers` are the URLs of allowed servers."""
        self.name = name
        self._builder = builder
        self._servers = {get_base_url(url) for url in servers}
        #: Deadline for the token.
        self.deadline = builder.deadline

    def assertion(self, audience: str) -> str:
        """Return a token of the agent's ServiceAccount. Raises SecretError."""
        token = self._builder.source.request_account_token(audience, _ACCOUNT_SECONDS, self.deadline).value
        self._builder.hide(token)
        return token

    def get(self, key: tuple[object, ...], request_token: Callable[[], Token]) -> str:
        """Return the cached token of `key`, or a new token that `request_token` gets through the library.

        Raises HttpError (auth_failed) and SecretError.
        """

        def fetch_token(deadline: float) -> Token:
            self.deadline = deadline
            try:
                value, seconds = request_token()
            except HttpError:
                raise
            except Exception as error:  # noqa: BLE001
                # The error's text is left out, because it may quote the response with the token.
                raise HttpError(
                    "auth_failed", f"no token from {self.name}: its response cannot be used ({type(error).__name__})"
                ) from None
            if not isinstance(value, str) or not is_header_value(value):
                raise HttpError("auth_failed", f"no token from {self.name}: its response has none that can be sent")
            # The lifetime is relative to this machine's clock, which may be wrong.
            return Token(value, min(seconds, _MOST_SECONDS) if seconds > 0 else _LEAST_SECONDS)

        builder = self._builder
        builder.renewable_token = builder.tokens.get_token(
            (self.name, *key, builder.tls), fetch_token, builder.deadline, builder.rejected_token
        )
        return builder.renewable_token

    def session(self) -> requests.Session:
        """Return a session whose requests go through the framework's HTTP client, for the cloud's library."""
        session = requests.Session()
        session.trust_env = False
        for scheme in ("http://", "https://"):
            session.mount(scheme, _CloudAdapter(self))
        return session

    def send(self, method: str, url: str, headers: dict[str, str], body: bytes) -> bytes:
        """Return the response with status 200. Raises HttpError (auth_failed) otherwise."""
        if get_base_url(url) not in self._servers:
            raise HttpError(
                "auth_failed", f"no token from {self.name}: {get_base_url(url)} is not the server that is named"
            )
        lower_case_headers = {name.lower(): value for name, value in headers.items()}
        sent_headers = tuple((name, value) for name, value in headers.items() if name.lower() not in _OWN_HEADERS)
        if authorization := lower_case_headers.get("authorization"):
            self._builder.hide(authorization.rpartition(" ")[2])
        # google-auth signs the assertion with a key.
        self._builder.hide(*parse_qs(body.decode(errors="replace")).get("assertion", ()))
        masked_values = self._builder.masked_values
        access = self._builder.make_token_server_access(sent_headers)
        try:
            kind = lower_case_headers.get("content-type", "application/x-www-form-urlencoded")
            sent_body = None if method == "GET" else body
            return http.request_token(
                url, sent_body, deadline=self.deadline, max_bytes=_MAX_BYTES, access=access, content_type=kind
            ).body
        except HttpError as error:
            text = clean(mask_secrets(str(error), *masked_values), 1000)
            raise HttpError(
                "auth_failed", f"no token from {self.name}: {text}", retryable=error.retryable,
                retry_after=error.retry_after,
            ) from None  # fmt: skip


class _CloudAdapter(BaseAdapter):
    """Transport adapter for `requests`."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__()
        self._cloud = cloud

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        """Send a prepared request by the framework's HTTP client. Raises HttpError."""
        body = request.body or b""
        data = body.encode() if isinstance(body, str) else bytes(body)
        response_body = self._cloud.send(request.method or "GET", request.url or "", dict(request.headers), data)
        response = requests.Response()
        response.status_code = 200
        response.url, response.request = request.url or "", request
        response.headers["Content-Type"] = "application/json"
        response.raw = io.BytesIO(response_body)
        return response

    def close(self) -> None:
        """Do nothing, because the framework's HTTP client owns the connections."""
