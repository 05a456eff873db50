"""Output formats: tables for users, JSON and YAML for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from dsf.text import escape_unprintable

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, RenderableType


class Format(StrEnum):
    """Output format."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


#: Cell of a table: a text, or a text and its style.
Cell: TypeAlias = str | tuple[str, str]
#: Types that can be printed.
Renderable: TypeAlias = "RenderableType"

OutputOption = Annotated[Format, typer.Option("--output", "-o", help="A table for users, json or yaml for programs.")]


#: Default maximum number of pairs (one scorer on one cluster) in a table, because a fleet has thousands of pairs, and
#: each may have many items.
DEFAULT_TABLE_LIMIT = 100

LimitOption = Annotated[
    int,
    typer.Option("--limit", min=0, help="Pairs in the table, 0 for all; json and yaml always have all."),
]


def get_table_limit(limit: int, output: Format) -> int | None:
    """Return the maximum number of pairs to read for this output. None stands for all pairs."""
    return limit if output is Format.TABLE and limit else None


def print_omission_note(row_count: int, total: int) -> None:
    """Print a note to standard error if a table is incomplete."""
    if row_count < total:
        typer.echo(
            f"dsf: {row_count} of {total} pairs; --limit 0 shows all, --cluster or a scorer's name shows fewer",
            err=True,
        )


def escape_control_characters(text: str) -> str:
    """Return `text` with terminal control characters escaped, because it may come from external services."""
    return escape_unprintable(text, allowed_characters="\n\t")


def flat(text: str) -> str:
    """Return the clean `text` on one line, so that it cannot imitate a line of `dsf`."""
    return escape_control_characters(" ".join(text.split()))


def format_age(seconds: float | None) -> str:
    """Return a duration as `12s`, `3m`, `5h` or `2d`, and `-` for None."""
    if seconds is None:
        return "-"
    whole_seconds = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole_seconds >= size:
            return f"{whole_seconds // size}{unit}"
    return f"{whole_seconds}s"


def format_time_until(moment: datetime | None, now: datetime | None = None) -> str:
    """Return the time until `moment` in the format of `format_age`, `now` for the past, and `-` for None."""
    if moment is None:
        return "-"
    remaining_seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    return "now" if remaining_seconds < 1 else format_age(remaining_seconds)


def format_clock(moment: datetime | None) -> str:
    """Return a time in the local time zone, with the date unless it is today, and `-` for None."""
    if moment is None:
        return "-"
    local = moment.astimezone()
    return local.strftime("%H:%M:%S" if local.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M:%S")


def format_number(value: float) -> str:
    """Return a score with a maximum of six significant digits."""
    return f"{value:.6g}"


def make_console() -> Console:
    """Return a console for standard output that does not break lines in a pipe."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    # Set a large width in a pipe, so that no table is wrapped.
    width = None if is_terminal else 10_000
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=not is_terminal)


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    right_aligned_headers: Sequence[str] = (),
    truncates_cells: bool = False,
) -> Renderable:
    """Return a table without borders. Columns named in `right_aligned_headers` are aligned right.

    Long cells are folded. With `truncates_cells` they are truncated, so that each row is one line.
    """
    from rich.table import Table
    from rich.text import Text

    rich_table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        justify: Literal["left", "right"] = "right" if header in right_aligned_headers else "left"
        rich_table.add_column(
            flat(header), justify=justify, overflow="ellipsis" if truncates_cells else "fold", no_wrap=truncates_cells
        )
    styled_rows = ([(cell, "") if isinstance(cell, str) else cell for cell in row] for row in rows)
    # Use Text objects, because rich interprets a plain str as markup.
    lines = [[Text(flat(text), style=style) for text, style in row] for row in styled_rows]
    columns = list(zip(*lines, strict=True))
    widths = [
        max(text.cell_len for text in (Text(header), *column)) for header, column in zip(headers, columns, strict=False)
    ]
    if columns and sum(widths) + 2 * len(widths) <= make_console().width:
        # Combine all lines into one row. Rich then needs a quarter of the time, and the result is the same because no
        # line is folded or truncated.
        lines = [[Text("\n").join(column) for column in columns]]
    for line in lines:
        rich_table.add_row(*line)
    return rich_table


def stack_parts(*parts: Cell | Renderable) -> Renderable:
    """Return the parts below each other. A text, with or without a style, is one line.

    The caller passes texts of external services through `flat`.
    """
    from rich.console import Group
    from rich.text import Text

    styled_parts = ((part, "") if isinstance(part, str) else part for part in parts)
    return Group(*(Text(*part) if isinstance(part, tuple) else part for part in styled_parts))


def emit(view: BaseModel, output: Format, render: Callable[[], Renderable]) -> None:
    """Print `view` in the selected format. `render` returns the table."""
    if output is Format.JSON:
        typer.echo(as_json(view, indent=2))
    elif output is Format.YAML:
        typer.echo(as_yaml(view), nl=False)
    else:
        make_console().print(render())


def as_json(view: BaseModel, indent: int | None = None) -> str:
    """Return the view as JSON without terminal control characters, on one line unless `indent` is set."""
    text = view.model_dump_json(by_alias=True, indent=indent)
    # Escape every unprintable character except line ends, because JSON has such characters only inside strings.
    text = "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
    return text if _is_encodable(text) else "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in text)


def _is_encodable(text: str) -> bool:
    """True if the encoding of standard output has all characters of the text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8", errors="strict")
    except UnicodeEncodeError:
        return False
    return True


def as_yaml(view: BaseModel) -> str:
    """Return the view as one YAML document without terminal control characters."""
    import yaml

    text: str = yaml.safe_dump(view.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True)
    if escape_unprintable(text, allowed_characters="\n") != text or not _is_encodable(text):
        text = yaml.safe_dump(yaml.safe_load(text), sort_keys=False)
    return text
