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
from dsf.http.failures import shown_token_answer
from dsf.text import cleaned, masked, place

#: Seconds that a token without a stated lifetime is kept.
_DEFAULT_SECONDS: Final = 300.0


def oauth2(method: OAuth2, builder: CredentialsBuilder) -> None:
    """Send a token that the token server issued to this client."""
    url = method.token_url
    secret = builder.text(method.client_secret, url)
    client, _ = builder.value(method.client_id, url)
    extra = [(parameter.name, builder.value(parameter, url)[0]) for parameter in method.parameters]
    fields = [("grant_type", "client_credentials"), *extra]
    if method.scopes:
        fields.append(("scope", " ".join(method.scopes)))
    if method.audience:
        fields.append(("audience", method.audience))
    headers: tuple[tuple[str, str], ...] = ()
    if method.client_authentication == "Basic":
        # RFC 6749, 2.3.1. Space as %20: some servers take + literally.
        both = base64.b64encode(f"{quote(client, safe='')}:{quote(secret, safe='')}".encode()).decode()
        builder.hide(both)
        headers = (("Authorization", f"Basic {both}"),)
    else:
        fields += [("client_id", client), ("client_secret", secret)]
    body = urlencode(fields).encode()
    # The secret is part of the key: a changed one takes effect at once. Hashed: no key holds it.
    key = ("oauth2", url, hashlib.sha256(repr((headers, body)).encode()).digest(), builder.tls)
    hidden = builder.hidden

    def get(until: float) -> Token:
        try:
            answer = http.ask_for_token(
                url,
                body,
                deadline=until,
                max_bytes=64 * 1024,
                access=builder.to_token_server(headers, is_direct=builder.is_direct),
                content_type="application/x-www-form-urlencoded",
            )
        except HttpError as error:
            text = cleaned(masked(str(error), *hidden), 1000)
            raise HttpError(
                "auth_failed", f"no token from the OAuth2 server: {text}", retryable=error.retryable,
                retry_after=error.retry_after,
            ) from None  # fmt: skip
        return _parse(answer, url)

    builder.token(key, get)
    builder.shows(f"token of {place('POST', url)}")


def _parse(answer: http.Answer, url: str) -> Token:
    where = f"no token from the OAuth2 server: {place('POST', url)}"
    try:
        document: Any = json.loads(answer.body)
    except (ValueError, RecursionError):
        text = shown_token_answer(answer.status, answer.content_type, answer.body)
        raise HttpError("auth_failed", f"{where}: HTTP {answer.status}, not JSON: {text}") from None
    token = document.get("access_token") if isinstance(document, dict) else None
    # The text is not quoted: an invalid value may still hold the token.
    if not isinstance(token, str) or not is_header_value(token) or " " in token:
        raise HttpError("auth_failed", f"{where}: the answer has no access_token that can be sent")
    kind = document.get("token_type", "Bearer")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise HttpError("auth_failed", f"{where}: its token_type is not Bearer")
    seconds = document.get("expires_in", _DEFAULT_SECONDS)
    try:
        seconds = float(seconds)
    except (TypeError, ValueError, OverflowError):
        seconds = _DEFAULT_SECONDS
    return Token(token, min(seconds, 86_400.0) if seconds > 0 else _DEFAULT_SECONDS)
