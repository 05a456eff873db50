"""Headers of each request, such as a tenant's id or an API key."""

from __future__ import annotations

from dsf.api.authentication import Header
from dsf.auth.draft import Draft


def add(method: tuple[Header, ...], draft: Draft) -> None:
    """Send them."""
    for header in method:
        value, shown = draft.value(header)
        draft.header(header.name, value, shown=shown)
