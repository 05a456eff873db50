"""Headers of each request, such as a tenant's id or an API key."""

from __future__ import annotations

from dsf.api.authentication import Header
from dsf.auth.builder import CredentialsBuilder


def add(method: tuple[Header, ...], builder: CredentialsBuilder) -> None:
    """Send them."""
    for header in method:
        value, shown = builder.value(header)
        builder.header(header.name, value, shown=shown)
