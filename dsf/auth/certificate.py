"""A client certificate (mTLS). The private key stays in this process."""

from __future__ import annotations

from datetime import UTC, datetime

from dsf.api.authentication import ClientCertificate
from dsf.api.plain import SecretKeyRef
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.secrets import SecretError
from dsf.http import trust


def add(method: ClientCertificate, builder: CredentialsBuilder) -> None:
    """Present it."""
    if not builder.url.lower().startswith("https://"):
        raise SecretError("clientCertificate: only a server with https:// can be shown a certificate", "secret_invalid")
    certificate = builder.bytes(SecretKeyRef(name=method.secret_name, key=method.certificate_key), is_sent=False)
    key = builder.bytes(SecretKeyRef(name=method.secret_name, key=method.private_key_key), is_sent=False)
    where = f"key {method.certificate_key!r} of Secret {method.secret_name!r}"
    try:
        begin, end = trust.period(certificate)
    except ValueError as error:
        raise SecretError(f"{where} cannot be used: {error}", "secret_invalid") from None
    now = datetime.now(UTC)
    if not begin <= now <= end:
        what = f"expired at {end:%Y-%m-%dT%H:%M:%SZ}" if now > end else f"is valid from {begin:%Y-%m-%dT%H:%M:%SZ} on"
        raise SecretError(
            f"{where}: the client certificate {what}; now it is {now:%Y-%m-%dT%H:%M:%SZ}", "secret_invalid"
        )
    builder.certificate, builder.key = certificate, key
    builder.shows(f"client certificate of Secret {method.secret_name}, valid until {end:%Y-%m-%dT%H:%M:%SZ}")
