"""How data is printed: tables for people, JSON and YAML for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, RenderableType
    from rich.table import Table

View = TypeVar("View", bound="BaseModel")

#: Seconds between two looks of `--watch`.
WATCH_INTERVAL = 1.0
# Wide enough that a table in a pipe is never broken into lines.
_PIPE_WIDTH = 10_000
_PRINTED_AS_IT_IS = {"\n", "\t"}


class Format(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[Format, typer.Option("--output", "-o", help="A table for people, json or yaml for programs.")]


def clean(text: str) -> str:
    """`text` without characters that steer a terminal: names and messages come from other people's services."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _PRINTED_AS_IT_IS else ascii(c)[1:-1] for c in text)


def flat(text: str) -> str:
    """`text` on one line, clean: a line that starts like one of ours must be one of ours."""
    return clean(" ".join(text.split()))


def age(seconds: float | None) -> str:
    """`12s`, `3m`, `5h`, `2d`; `-` when there is none."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def until(moment: datetime | None, now: datetime | None = None) -> str:
    """How long until `moment`, as an age; `now` when it has come, `-` without one."""
    if moment is None:
        return "-"
    left = (moment - (now or datetime.now(UTC))).total_seconds()
    return "now" if left < 1 else age(left)


def clock(moment: datetime | None) -> str:
    """A moment in local time, with the date unless it is today."""
    if moment is None:
        return "-"
    local = moment.astimezone()
    return local.strftime("%H:%M:%S" if local.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M:%S")


def number(value: float) -> str:
    """A score without digits nobody reads."""
    return f"{value:.6g}"


def console() -> Console:
    """A console for standard output that does not break lines in a pipe."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    width = None if terminal else _PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=not terminal)


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str | tuple[str, str]]], *, right: Sequence[str] = ()
) -> Table:
    """A table without lines. A cell is a text or (text, style); columns named in `right` are aligned right."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        made.add_column(header, justify="right" if header in right else "left", overflow="fold")
    for row in rows:
        cells = [(cell, "") if isinstance(cell, str) else cell for cell in row]
        # Text objects: a plain str would be read as markup.
        made.add_row(*(Text(flat(text), style=style) for text, style in cells))
    return made


def emit(view: BaseModel, output: Format, render: Callable[[], RenderableType]) -> None:
    """Print `view` in the chosen format; `render` makes what people see."""
    if output is Format.JSON:
        typer.echo(view.model_dump_json(by_alias=True, indent=2))
    elif output is Format.YAML:
        typer.echo(_yaml(view), nl=False)
    else:
        console().print(render())


def watch(read: Callable[[], View], output: Format, render: Callable[[View], RenderableType]) -> NoReturn:
    """Print again and again until Ctrl-C: in place on a terminal, else one after the other.

    JSON is one line per look and YAML one document. While Redis is away a line on stderr says so, and it goes on.
    """
    import redis

    from dsf.cli.session import redis_hint

    if output is Format.TABLE and sys.stdout.isatty():
        _watch_live(read, render)
    while True:
        try:
            view = read()
        except redis.RedisError as error:
            typer.echo(f"error: {redis_hint(error)}", err=True)
        else:
            if output is Format.JSON:
                typer.echo(view.model_dump_json(by_alias=True))
            elif output is Format.YAML:
                typer.echo("---\n" + _yaml(view), nl=False)
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

    from dsf.cli.session import redis_hint

    shown: RenderableType = ""
    with Live(console=console(), auto_refresh=False, screen=False, vertical_overflow="crop") as live:
        while True:
            try:
                shown = render(read())
                live.update(shown, refresh=True)
            except redis.RedisError as error:
                # What is shown is of the last look that worked; the line below it says that it is old.
                live.update(Group(Text(clean(redis_hint(error)), style="red"), shown), refresh=True)
            time.sleep(WATCH_INTERVAL)


def _yaml(view: BaseModel) -> str:
    import yaml

    text: str = yaml.safe_dump(view.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True)
    return text
