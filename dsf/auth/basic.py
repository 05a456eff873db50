"""A user and a password, as `Authorization: Basic`."""

from __future__ import annotations

import base64

from dsf.api.authentication import Basic
from dsf.auth.builder import CredentialsBuilder
from dsf.auth.secrets import SecretError
from dsf.text import MASK


def add(method: Basic, builder: CredentialsBuilder) -> None:
    """Send both."""
    password = "" if method.password is None else builder.text(method.password)
    user, shown = builder.value(method.username)
    if ":" in user:
        raise SecretError("basic.username has a colon, which ends a user's name in HTTP", "secret_invalid")
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    builder.hide(text)
    builder.header("Authorization", f"Basic {text}", shown=f"Basic {shown}:{MASK if password else ''}")
