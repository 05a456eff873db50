"""Name of the local user for the list of changes, which is unverified and marked as claimed."""

from __future__ import annotations

import getpass
import os
import socket
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dsf.fleet.changes import Actor

AsOption = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="NAME", help="Author in `dsf changes`, marked as claimed; default: the system's USER@HOST."
    ),
]


def who() -> str:
    """`user@host` of the local user, as far as the system knows."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user id without an entry in /etc/passwd.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def actor(name: str | None) -> Actor:
    """Return the author: `name`, or the local user."""
    from dsf.fleet.changes import Actor

    return Actor(name=name or who(), claimed=True, way="cli")
