"""Authentication methods: each function adds headers, URL parameters or a certificate to a `CredentialsBuilder`.

All functions raise SecretError if a Secret is missing or cannot be used. OAuth2 is in `dsf.auth.oauth2`.
"""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from dsf.api.authentication import Basic, ClientCertificate, Header, Parameter, ServiceAccountToken, TokenSecretRef
from dsf.api.fieldtypes import SecretKeyRef
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.secrets import SecretError
from dsf.http import trust
from dsf.text import MASK

_TOKEN_PATTERN: Final = re.compile(r"[!-~]+")


def add_token_from_secret(method: TokenSecretRef, builder: CredentialsBuilder) -> None:
    """Send a token from a Secret."""
    data = builder.read_bytes(SecretKeyRef(name=method.name, key=method.key))
    builder.add_bearer(parse_token(data, method.name, method.key))


def parse_token(data: bytes, secret_name: str, key: str) -> str:
    """Return the token in a Secret's value. Raises SecretError, without quoting the value, if the token is invalid."""
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if len(data) > 64 * 1024 or _TOKEN_PATTERN.fullmatch(text) is None:
        raise SecretError(
            f"key {key!r} of Secret {secret_name!r} holds no token: expected one line of printable ASCII",
            "secret_invalid",
        )
    return text


def add_basic_auth(method: Basic, builder: CredentialsBuilder) -> None:
    """Send a user name and a password."""
    password = "" if method.password is None else builder.read_text(method.password)
    user, masked_user = builder.read_value(method.username)
    if ":" in user:
        raise SecretError("basic.username has a colon, which ends a user's name in HTTP", "secret_invalid")
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    builder.hide(text)
    builder.add_header("Authorization", f"Basic {text}", masked_value=f"Basic {masked_user}:{MASK if password else ''}")


def add_service_account_token(method: ServiceAccountToken, builder: CredentialsBuilder) -> None:
    """Send a token of the agent's own ServiceAccount for an audience."""
    token_parameters = method.audience, method.expiration_seconds
    builder.add_token(
        ("serviceAccountToken", *token_parameters), partial(builder.source.request_account_token, *token_parameters)
    )


def add_client_certificate(method: ClientCertificate, builder: CredentialsBuilder) -> None:
    """Present a client certificate (mTLS). The private key stays in this process."""
    if not builder.url.lower().startswith("https://"):
        raise SecretError("clientCertificate: only a server with https:// can be shown a certificate", "secret_invalid")
    certificate = builder.read_bytes(SecretKeyRef(name=method.secret_name, key=method.certificate_key), is_sent=False)
    key = builder.read_bytes(SecretKeyRef(name=method.secret_name, key=method.private_key_key), is_sent=False)
    key_label = f"key {method.certificate_key!r} of Secret {method.secret_name!r}"
    try:
        begin, end = trust.parse_validity(certificate)
    except ValueError as error:
        raise SecretError(f"{key_label} cannot be used: {error}", "secret_invalid") from None
    now = datetime.now(UTC)
    if not begin <= now <= end:
        validity_problem = (
            f"expired at {end:%Y-%m-%dT%H:%M:%SZ}" if now > end else f"is valid from {begin:%Y-%m-%dT%H:%M:%SZ} on"
        )
        raise SecretError(
            f"{key_label}: the client certificate {validity_problem}; now it is {now:%Y-%m-%dT%H:%M:%SZ}",
            "secret_invalid",
        )
    builder.tls = replace(builder.tls, certificate=certificate, key=key)
    builder.add_description(f"client certificate of Secret {method.secret_name}, valid until {end:%Y-%m-%dT%H:%M:%SZ}")


def add_headers(method: tuple[Header, ...], builder: CredentialsBuilder) -> None:
    """Send headers with each request, such as a tenant id or an API key."""
    for header in method:
        value, masked_value = builder.read_value(header)
        builder.add_header(header.name, value, masked_value=masked_value)


def add_query_parameters(method: tuple[Parameter, ...], builder: CredentialsBuilder) -> None:
    """Send parameters in the URL of each request. Headers are safer, because servers and proxies log URLs."""
    for parameter in method:
        value, masked_value = builder.read_value(parameter)
        builder.add_parameter(parameter.name, value, masked_value=masked_value)
