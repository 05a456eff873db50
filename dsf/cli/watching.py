"""`--watch`: a view that is printed periodically."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer

from dsf.cli.output import Format, as_json, as_yaml, clean, console, flat
from dsf.cli.session import redis_hint

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import RenderableType

View = TypeVar("View", bound="BaseModel")

#: Seconds between two updates.
WATCH_INTERVAL = 1.0


def watch(read: Callable[[], View], output: Format, render: Callable[[View], RenderableType]) -> NoReturn:
    """Print periodically until Ctrl-C: in place on a terminal, else one after the other.

    JSON is one line per update and YAML one document. While Redis or the API is down, it continues with a line on
    stderr.
    """
    import redis

    from dsf.errors import ApiError, HttpError

    if output is Format.TABLE and sys.stdout.isatty():
        _watch_live(read, render)
    while True:
        try:
            view = read()
        except (redis.RedisError, ApiError, HttpError) as error:
            typer.echo(f"error: {_hint(error)}", err=True)
        else:
            if output is Format.JSON:
                typer.echo(as_json(view))
            elif output is Format.YAML:
                typer.echo("---\n" + as_yaml(view), nl=False)
            else:
                console().print(render(view))
                typer.echo()
            sys.stdout.flush()
        time.sleep(WATCH_INTERVAL)


def _watch_live(read: Callable[[], View], render: Callable[[View], RenderableType]) -> NoReturn:
    import redis
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from dsf.errors import ApiError, HttpError

    shown: RenderableType = ""
    with Live(console=console(), auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        while True:
            try:
                shown = render(read())
                live.update(shown, refresh=True)
            except (redis.RedisError, ApiError, HttpError) as error:
                # The view is of the last successful update; the line below marks it as old.
                live.update(Group(Text(clean(_hint(error)), style="red"), shown), refresh=True)
            time.sleep(WATCH_INTERVAL)


def _hint(error: Exception) -> str:
    from dsf.errors import DsfError

    return flat(str(error)) if isinstance(error, DsfError) else redis_hint(error)
