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
    """Return `user@host` of the local user, with the user id if the user has no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # In containers, a user id may lack an entry in /etc/passwd.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def actor(name: str | None) -> Actor:
    """Return the author of a change: `name`, or the local user by default."""
    from dsf.fleet.changes import Actor

    return Actor(name=name or who(), claimed=True, way="cli")
