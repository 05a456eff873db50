"""Prints tables for users, and JSON and YAML for programs."""

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


#: Default maximum number of pairs (one scorer on one cluster) in a table. A fleet has thousands of pairs, each with
#: possibly many items.
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


def flatten(text: str) -> str:
    """Return `text` on one line, without control characters, so that it cannot imitate a line of `dsf`."""
    return escape_control_characters(" ".join(text.split()))


def format_age(seconds: float | None) -> str:
    """Return a duration as `12s`, `3m`, `5h` or `2d`, and `-` for None."""
    if seconds is None:
        return "-"
    whole_seconds = max(0, int(seconds))
    for unit_seconds, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole_seconds >= unit_seconds:
            return f"{whole_seconds // unit_seconds}{unit}"
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
    """Return a score with at most six significant digits."""
    return f"{value:.6g}"


def make_console() -> Console:
    """Return a console for standard output that does not break lines in a pipe."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    # Use a large width in a pipe, so that no table is wrapped.
    width = None if is_terminal else 10_000
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=not is_terminal)


def make_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    right_aligned_headers: Sequence[str] = (),
    truncates_cells: bool = False,
) -> Renderable:
    """Return a table without borders. Columns named in `right_aligned_headers` are aligned right.

    Folds long cells. With `truncates_cells`, truncates them instead, so that each row is one line.
    """
    from rich.table import Table
    from rich.text import Text

    rich_table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        justify: Literal["left", "right"] = "right" if header in right_aligned_headers else "left"
        rich_table.add_column(
            flatten(header),
            justify=justify,
            overflow="ellipsis" if truncates_cells else "fold",
            no_wrap=truncates_cells,
        )
    styled_rows = ([(cell, "") if isinstance(cell, str) else cell for cell in row] for row in rows)
    # Use Text objects, because rich interprets a plain str as markup.
    lines = [[Text(flatten(text), style=style) for text, style in row] for row in styled_rows]
    columns = list(zip(*lines, strict=True))
    widths = [
        max(text.cell_len for text in (Text(header), *column)) for header, column in zip(headers, columns, strict=False)
    ]
    if columns and sum(widths) + 2 * len(widths) <= make_console().width:
        # Combine all lines into one row, which takes Rich a quarter of the time. The result is the same, because no
        # line needs to be folded or truncated.
        lines = [[Text("\n").join(column) for column in columns]]
    for line in lines:
        rich_table.add_row(*line)
    return rich_table


def stack_parts(*parts: Cell | Renderable) -> Renderable:
    """Return the parts one below the other. A text, with or without a style, is one line.

    The caller has passed texts of external services through `flatten`.
    """
    from rich.console import Group
    from rich.text import Text

    styled_parts = ((part, "") if isinstance(part, str) else part for part in parts)
    return Group(*(Text(*part) if isinstance(part, tuple) else part for part in styled_parts))


def emit(view: BaseModel, output: Format, render: Callable[[], Renderable]) -> None:
    """Print `view` in the selected format. `render` is called for a table, and returns it."""
    if output is Format.JSON:
        typer.echo(format_json(view, indent=2))
    elif output is Format.YAML:
        typer.echo(format_yaml(view), nl=False)
    else:
        make_console().print(render())


def format_json(view: BaseModel, indent: int | None = None) -> str:
    """Return the view as JSON without terminal control characters, on one line unless `indent` is set."""
    text = view.model_dump_json(by_alias=True, indent=indent)
    # Escape unprintable characters except line ends as in a JSON string, because they only occur in strings.
    text = "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
    return text if _is_encodable(text) else "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in text)


def _is_encodable(text: str) -> bool:
    """True if the encoding of standard output can represent the text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8", errors="strict")
    except UnicodeEncodeError:
        return False
    return True


def format_yaml(view: BaseModel) -> str:
    """Return the view as one YAML document without terminal control characters."""
    import yaml

    text: str = yaml.safe_dump(view.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True)
    if escape_unprintable(text, allowed_characters="\n") != text or not _is_encodable(text):
        text = yaml.safe_dump(yaml.safe_load(text), sort_keys=False)
    return text
