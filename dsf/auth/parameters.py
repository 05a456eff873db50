"""Parameters of each request's URL. They stand in logs of servers and proxies: a header is the better place."""

from __future__ import annotations

from dsf.api.authentication import Parameter
from dsf.auth.draft import Draft


def add(method: tuple[Parameter, ...], draft: Draft) -> None:
    """Send them."""
    for parameter in method:
        value, shown = draft.value(parameter)
        draft.parameter(parameter.name, value, shown=shown)
