"""OAuth2 client credentials (RFC 6749, 4.4)."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any, Final
from urllib.parse import quote, urlencode

from dsf import http
from dsf.api.authentication import OAuth2
from dsf.api.fieldtypes import is_header_value
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.secrets import Token
from dsf.errors import HttpError
from dsf.http.failures import describe_token_response
from dsf.text import clean, describe_request, mask_secrets

#: Lifetime in seconds of a token without a valid `expires_in`.
_DEFAULT_LIFETIME_SECONDS: Final = 300.0


def add_oauth2_token(method: OAuth2, builder: CredentialsBuilder) -> None:
    """Send a token that the token server issued to this client. Raises SecretError and HttpError (auth_failed)."""
    url = method.token_url
    client_secret = builder.read_text(method.client_secret, url)
    client_id, _ = builder.read_value(method.client_id, url)
    extra_parameters = [(parameter.name, builder.read_value(parameter, url)[0]) for parameter in method.parameters]
    fields = [("grant_type", "client_credentials"), *extra_parameters]
    if method.scopes:
        fields.append(("scope", " ".join(method.scopes)))
    if method.audience:
        fields.append(("audience", method.audience))
    headers: tuple[tuple[str, str], ...] = ()
    if method.client_authentication == "Basic":
        # RFC 6749, 2.3.1. Encode spaces as %20, because some servers do not decode +.
        credentials = f"{quote(client_id, safe='')}:{quote(client_secret, safe='')}"
        encoded_credentials = base64.b64encode(credentials.encode()).decode()
        builder.hide(encoded_credentials)
        headers = (("Authorization", f"Basic {encoded_credentials}"),)
    else:
        fields += [("client_id", client_id), ("client_secret", client_secret)]
    body = urlencode(fields).encode()
    # The cache key contains a hash of the client secret, so that a changed secret takes effect immediately.
    key = ("oauth2", url, hashlib.sha256(repr((headers, body)).encode()).digest(), builder.tls)
    masked_values = builder.masked_values

    def request_token(token_deadline: float) -> Token:
        try:
            response = http.request_token(
                url,
                body,
                deadline=token_deadline,
                max_bytes=64 * 1024,
                access=builder.make_token_server_access(headers, is_direct=builder.is_direct),
                content_type="application/x-www-form-urlencoded",
            )
        except HttpError as error:
            text = clean(mask_secrets(str(error), *masked_values), 1000)
            raise HttpError(
                "auth_failed", f"no token from the OAuth2 server: {text}", retryable=error.retryable,
                retry_after=error.retry_after,
            ) from None  # fmt: skip
        return _parse_token(response, url)

    builder.add_token(key, request_token)
    builder.add_description(f"token of {describe_request('POST', url)}")


def _parse_token(response: http.Response, url: str) -> Token:
    """Return the token in the token server's response. Raises HttpError (auth_failed)."""
    error_prefix = f"no token from the OAuth2 server: {describe_request('POST', url)}"
    try:
        document: Any = json.loads(response.body)
    except (ValueError, RecursionError):
        text = describe_token_response(response.status, response.content_type, response.body)
        raise HttpError("auth_failed", f"{error_prefix}: HTTP {response.status}, not JSON: {text}") from None
    token = document.get("access_token") if isinstance(document, dict) else None
    # Do not quote the value, because an invalid value may contain a token.
    if not isinstance(token, str) or not is_header_value(token) or " " in token:
        raise HttpError("auth_failed", f"{error_prefix}: the response has no access_token that can be sent")
    kind = document.get("token_type", "Bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise HttpError("auth_failed", f"{error_prefix}: its token_type is not Bearer")
    seconds = document.get("expires_in", _DEFAULT_LIFETIME_SECONDS)
    try:
        seconds = float(seconds)
    except (TypeError, ValueError, OverflowError):
        seconds = _DEFAULT_LIFETIME_SECONDS
    return Token(token, min(seconds, 86_400.0) if seconds > 0 else _DEFAULT_LIFETIME_SECONDS)
