"""A token of the agent's own ServiceAccount for one audience."""

from __future__ import annotations

from dsf.api.authentication import ServiceAccountToken
from dsf.auth import bearer
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.tokencache import Token


def add(method: ServiceAccountToken, builder: CredentialsBuilder) -> None:
    """Send it."""

    def get(until: float) -> Token:
        return Token(*builder.source.account_token(method.audience, method.expiration_seconds, until))

    key = ("serviceAccountToken", method.audience, method.expiration_seconds)
    builder.renewable = builder.tokens.token(key, get, builder.deadline, builder.refused)
    bearer.send(builder.renewable, builder)
