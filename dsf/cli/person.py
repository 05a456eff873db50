"""Who is at this terminal, for the list of changes. Nothing here can prove it: the name is marked as claimed."""

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
        "--as", metavar="NAME", help="Whom to name in `dsf changes`, as claimed; default: the system's USER@HOST."
    ),
]


def who() -> str:
    """`user@host` of the person at this terminal, as far as the system knows."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user id without an entry in /etc/passwd.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def actor(name: str | None) -> Actor:
    """Who acts: `name`, or the person at this terminal."""
    from dsf.fleet.changes import Actor

    return Actor(name=name or who(), claimed=True, way="cli")
