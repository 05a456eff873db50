"""Parsers for durations and times in command-line options."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from dsf.api.meta import pause_end
from dsf.api.types import MAX_SECONDS

if TYPE_CHECKING:
    from dsf.api.scorerule import HoldRule

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+[smhd])+|\d+", re.ASCII)


def seconds(text: str | int) -> int:
    """`90`, `90s`, `5m`, `1h30m` or `2d` in seconds.

    Raises typer.BadParameter for anything else and for more than MAX_SECONDS (68 years).
    """
    if isinstance(text, int):
        # Typer also parses an option's default.
        return text
    if not _DURATION.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is not a time; use seconds such as 90, or 90s, 5m, 1h30m, 2d")
    total = MAX_SECONDS + 1
    # Python refuses to parse numbers with thousands of digits.
    if len(text) <= 100:
        total = sum(int(number) * _UNITS[unit or "s"] for number, unit in re.findall(r"(\d+)([smhd]?)", text))
    if total > MAX_SECONDS:
        raise typer.BadParameter(f"{text[:100]!r} is too long; at most {MAX_SECONDS} seconds (68 years) are possible")
    return total


def hold(text: str) -> HoldRule:
    """`5:10m`: a hold of at least 5 points for ten minutes. Raises typer.BadParameter."""
    from dsf.api.scorerule import HoldRule

    points, colon, time_ = text.partition(":")
    if not (colon and re.fullmatch(r"[1-9]\d{0,2}", points, re.ASCII) and int(points) <= 200):
        raise typer.BadParameter(f"{text!r} is no hold; use points from 1 to 200 and a time, such as 5:10m or 5:0")
    return HoldRule(min_change=int(points), for_seconds=seconds(time_))


def moment(text: str, now: float | None = None) -> float:
    """The end of a pause in unix seconds: ISO 8601 (local time unless it has a zone), or a duration from now.

    Raises typer.BadParameter for anything else and for the past.
    """
    now = _hub_now() if now is None else now
    if _DURATION.fullmatch(text):
        at = now + seconds(text)
    else:
        at = _iso(text, pause_end, "a time from now such as 30m or 2h")
    if at <= now:
        raise typer.BadParameter(f"{text!r} is in the past")
    return at


def past(text: str, now: float | None = None) -> float:
    """A past time in unix seconds: ISO 8601 (local time unless it has a zone), or how long ago.

    Raises typer.BadParameter for anything else.
    """
    if _DURATION.fullmatch(text):
        return (_hub_now() if now is None else now) - seconds(text)
    return _iso(text, datetime.timestamp, "how long ago such as 30m or 2h")


def _hub_now() -> float:
    # Imported late: it needs redis-py, for which `dsf --help` would wait.
    from dsf.process import hubclock

    return hubclock.now()


def _iso(text: str, read: Callable[[datetime], float], otherwise: str) -> float:
    try:
        return read(datetime.fromisoformat(text))
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is not a time; use ISO 8601 such as 2026-12-24T18:00 or 2026-12-24T18:00Z, or {otherwise}"
        ) from None
