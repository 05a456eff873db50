"""A token of a Secret, as `Authorization: Bearer`."""

from __future__ import annotations

import re
from typing import Final

from dsf.api.authentication import TokenSecretRef
from dsf.api.plain import SecretKeyRef
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.secrets import SecretError
from dsf.text import MASK

_TOKEN: Final = re.compile(r"[!-~]+")


def add(method: TokenSecretRef, builder: CredentialsBuilder) -> None:
    """Send the token."""
    send(parse_token(builder.bytes(SecretKeyRef(name=method.name, key=method.key)), method.name, method.key), builder)


def send(token: str, builder: CredentialsBuilder) -> None:
    """Send this token."""
    builder.hide(token)
    builder.header("Authorization", f"Bearer {token}", shown=f"Bearer {MASK}")


def parse_token(data: bytes, name: str, key: str) -> str:
    """Parse a token from a Secret. Raises SecretError (without the text) when it is invalid."""
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if len(data) > 64 * 1024 or _TOKEN.fullmatch(text) is None:
        raise SecretError(
            f"key {key!r} of Secret {name!r} holds no token: expected one line of printable ASCII", "secret_invalid"
        )
    return text
