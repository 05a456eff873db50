"""Azure: a token of Microsoft Entra for the agent's ServiceAccount, through azure-identity (extra `azure`)."""

from __future__ import annotations

import time

from azure.core.pipeline.transport import RequestsTransport
from azure.identity import ClientAssertionCredential

from dsf.api.clouds import Azure
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.secrets import Token
from dsf.clouds.cloud import Cloud


def add(method: Azure, builder: CredentialsBuilder) -> None:
    """Add the token to each request."""
    cloud = Cloud("Azure", builder, [method.authority_url])

    def get() -> Token:
        with cloud.session() as session:
            credential = ClientAssertionCredential(
                method.tenant_id,
                method.client_id,
                lambda: cloud.assertion(method.token_audience),
                authority=method.authority_url,
                transport=RequestsTransport(session=session, session_owner=False),
            )
            token = credential.get_token(method.scope)
        return Token(token.token, token.expires_on - time.time())

    builder.add_bearer(cloud.get((method,), get))
    builder.add_description(f"token of Azure for {method.scope}, as {method.client_id}")
