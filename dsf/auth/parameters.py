"""Parameters of each request's URL. Servers and proxies log them: prefer a header."""

from __future__ import annotations

from dsf.api.authentication import Parameter
from dsf.auth.draft import Draft


def add(method: tuple[Parameter, ...], draft: Draft) -> None:
    """Send them."""
    for parameter in method:
        value, shown = draft.value(parameter)
        draft.parameter(parameter.name, value, shown=shown)
