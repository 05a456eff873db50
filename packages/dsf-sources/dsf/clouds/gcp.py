"""Google: a token for the agent's ServiceAccount (workload identity federation) or for a key, through google-auth.

The method comes with the extra `gcp`.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any, Final

from google.auth import identity_pool
from google.auth.transport.requests import Request
from google.oauth2 import service_account

from dsf.api.clouds import Gcp
from dsf.api.fieldtypes import SecretKeyRef
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.secrets import SecretError, Token
from dsf.clouds.cloud import Cloud

_JWT: Final = "urn:ietf:params:oauth:token-type:jwt"


def add(method: Gcp, builder: CredentialsBuilder) -> None:
    """Add the token to each request."""
    cloud = Cloud("Google", builder, [method.server, method.credentials_url])
    key: tuple[object, ...] = (method,)
    if method.key is None:
        credentials = _make_federated_credentials(method, cloud, identity_pool)
        account_name = method.service_account or method.audience
    else:
        data = builder.read_bytes(method.key, method.server)
        credentials = _make_key_credentials(data, method.key, method, service_account)
        account_name = credentials.service_account_email
        # The key contains a hash of the Secret, so that a changed Secret takes effect at once and is not stored.
        key = (method, hashlib.sha256(data).digest())

    def get() -> Token:
        with cloud.session() as session:
            credentials.refresh(Request(session=session))
        # google-auth's times have no zone and are UTC.
        return Token(credentials.token, (credentials.expiry.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds())

    builder.add_bearer(cloud.get(key, get))
    builder.add_description(f"token of Google for {account_name}")


# The modules have the type Any, because the library is only partly typed.
def _make_federated_credentials(method: Gcp, cloud: Cloud, identity_pool: Any) -> Any:
    class _Supplier(identity_pool.SubjectTokenSupplier):  # type: ignore[misc]
        def get_subject_token(self, context: Any, request: Any) -> str:
            del context, request
            return cloud.assertion(method.token_audience or f"https:{method.audience}")

    account = method.service_account
    url = f"{method.credentials_url.rstrip('/')}/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
    return identity_pool.Credentials(
        audience=method.audience,
        subject_token_type=_JWT,
        token_url=method.server,
        subject_token_supplier=_Supplier(),
        service_account_impersonation_url=url if account else None,
        scopes=list(method.scopes),
    )


def _make_key_credentials(data: bytes, ref: SecretKeyRef, method: Gcp, service_account: Any) -> Any:
    from_info = service_account.Credentials.from_service_account_info
    try:
        info = json.loads(data)
        # Use the server in the spec, for which the Secret was released, and not the server in the key.
        return from_info({**info, "token_uri": method.server}, scopes=list(method.scopes))
    except (ValueError, TypeError, RecursionError):
        raise SecretError(
            f"key {ref.key!r} of Secret {ref.name!r} is no key of a service account of Google, in JSON",
            "secret_invalid",
        ) from None
