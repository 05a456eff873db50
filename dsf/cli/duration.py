"""Parsers for durations, times, label selectors and holds (`spec.execution.hold`) in command-line options."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from dsf.api.durations import is_duration, parse_duration

if TYPE_CHECKING:
    from dsf.api.scorerule import HoldRule


def parse_seconds(text: str | int) -> int:
    """Return the seconds of a duration such as `90`, `90s`, `5m`, `1h30m` or `2d`.

    Raises typer.BadParameter for other texts and for more than MAX_SECONDS (68 years).
    """
    if isinstance(text, int):
        # Typer also passes the default of an option, which is an integer.
        return text
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_selector_option(text: str | None) -> str | None:
    """Check a label selector in kubectl's syntax, and return it. Raises typer.BadParameter if it is invalid."""
    if text is None:
        return None
    # Imported late, because it loads pydantic, which would slow down every command.
    from dsf.api.acts import parse_selector

    try:
        parse_selector(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


SelectorOption = Annotated[
    str | None,
    typer.Option(
        "--selector",
        "-l",
        callback=parse_selector_option,
        metavar="LABELS",
        help="Only on clusters with these labels, such as env=prod or 'region in (eu,us)'.",
    ),
]


def parse_hold(text: str) -> HoldRule:
    """Return the rule of a hold from `<points>:<duration>`.

    A hold publishes a change of a score only if it is large enough and lasts long enough: `5:10m` publishes changes of
    at least 5 points that last ten minutes. Raises typer.BadParameter for other texts.
    """
    from dsf.api.scorerule import HoldRule

    points, colon, duration = text.partition(":")
    if not (colon and re.fullmatch(r"[1-9]\d{0,2}", points, re.ASCII) and int(points) <= 200):
        raise typer.BadParameter(f"{text!r} is no hold; use points from 1 to 200 and a time, such as 5:10m or 5:0")
    return HoldRule(min_change=int(points), for_seconds=parse_seconds(duration))


def parse_pause_end(text: str, now: float | None = None) -> float:
    """Return the end of a pause in unix seconds: ISO 8601 (local time unless it has a zone), or a duration from now.

    `now` is the current time in unix seconds, by default the hub's. Raises typer.BadParameter for other texts and for
    times in the past.
    """
    # Imported late, because it loads pydantic, which would slow down every command.
    from dsf.api.meta import limit_pause_end

    now = _get_hub_time() if now is None else now
    end = (
        now + parse_seconds(text)
        if is_duration(text)
        else _parse_iso_time(text, limit_pause_end, "a time from now such as 30m or 2h")
    )
    if end <= now:
        raise typer.BadParameter(f"{text!r} is in the past")
    return end


def parse_start_time(text: str) -> float:
    """Return the start of a period until now in unix seconds.

    The text is a time in ISO 8601 (local time unless it has a zone), or the length of the period. Accepts a time in the
    future, which makes the period empty. Raises typer.BadParameter for other texts.
    """
    if is_duration(text):
        return _get_hub_time() - parse_seconds(text)
    return _parse_iso_time(text, datetime.timestamp, "how long ago such as 30m or 2h")


def _get_hub_time() -> float:
    # Import it late, because it loads redis-py, which would slow down `dsf --help`.
    from dsf.process import hubclock

    return hubclock.now()


def _parse_iso_time(text: str, to_seconds: Callable[[datetime], float], alternative: str) -> float:
    """Return a time in ISO 8601, converted by `to_seconds`, in unix seconds.

    `alternative` describes another valid format in the message of typer.BadParameter.
    """
    try:
        return to_seconds(datetime.fromisoformat(text))
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is not a time; use ISO 8601 such as 2026-12-24T18:00 or 2026-12-24T18:00Z, or {alternative}"
        ) from None
