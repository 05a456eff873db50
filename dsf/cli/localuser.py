"""Finds the name of the local user, who is the author of changes by the command line.

`dsf changes` marks the name as claimed, because it is not verified.
"""

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


def get_local_user() -> str:
    """Return `USER@HOST` of the local user, or `UID@HOST` if the user id has no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run with a user id that /etc/passwd does not list.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def make_actor(name: str | None) -> Actor:
    """Return the author of a change: the value of `--as`, or the local user by default."""
    from dsf.fleet.changes import Actor

    return Actor(name=name or get_local_user(), claimed=True, way="cli")
