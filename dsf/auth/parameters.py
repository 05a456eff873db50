"""Parameters of each request's URL. Servers and proxies log them: prefer a header."""

from __future__ import annotations

from dsf.api.authentication import Parameter
from dsf.auth.builder import CredentialsBuilder


def add(method: tuple[Parameter, ...], builder: CredentialsBuilder) -> None:
    """Send them."""
    for parameter in method:
        value, shown = builder.value(parameter)
        builder.parameter(parameter.name, value, shown=shown)
