"""A token of the agent's own ServiceAccount for one audience."""

from __future__ import annotations

from dsf.api.authentication import ServiceAccountToken
from dsf.auth import bearer
from dsf.auth.draft import Draft
from dsf.auth.tokencache import Token


def add(method: ServiceAccountToken, draft: Draft) -> None:
    """Send it."""

    def get(until: float) -> Token:
        return Token(*draft.source.account_token(method.audience, method.expiration_seconds, until))

    key = ("serviceAccountToken", method.audience, method.expiration_seconds)
    draft.renewable = draft.tokens.token(key, get, draft.deadline, draft.refused)
    bearer.send(draft.renewable, draft)
