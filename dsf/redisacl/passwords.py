"""Passwords of the clusters' users, derived like their signing keys: the hub stores none."""

from __future__ import annotations

import hmac


def derive_password(master_secret: bytes, cluster: str, key_id: int) -> str:
    """The password of one cluster in Redis for the key id of its signing key.

    Its label differs from that of `dsf.messages.derive_key`: neither reveals the other. 64 hex digits, so that it
    needs no quoting in a URL.
    """
    return hmac.digest(master_secret, f"dsf-redis-password/{key_id}/{cluster}".encode(), "sha256").hex()
