"""Parsers for durations and times in command-line options."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from dsf.api.pauses import pause_end
from dsf.api.types import MAX_SECONDS

if TYPE_CHECKING:
    from dsf.store.registry import HoldRule

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+[smhd])+|\d+", re.ASCII)
#: Most characters of an option; Python refuses to parse numbers with thousands of digits.
_LONGEST = 100


def seconds(text: str | int) -> int:
    """`90`, `90s`, `5m`, `1h30m` or `2d` in seconds.

    Raises typer.BadParameter for anything else and for more than MAX_SECONDS (68 years).
    """
    if isinstance(text, int):
        # Typer also parses an option's default.
        return text
    if not _DURATION.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is not a time; use seconds such as 90, or 90s, 5m, 1h30m, 2d")
    if len(text) > _LONGEST:
        raise _too_long(text)
    total = sum(int(number) * _UNITS[unit or "s"] for number, unit in re.findall(r"(\d+)([smhd]?)", text))
    if total > MAX_SECONDS:
        raise _too_long(text)
    return total


def hold(text: str) -> HoldRule:
    """`5:10m`: a hold of at least 5 points for ten minutes. Raises typer.BadParameter."""
    from dsf.store.registry import HoldRule

    points, colon, time_ = text.partition(":")
    if not (colon and re.fullmatch(r"[1-9]\d{0,2}", points, re.ASCII) and int(points) <= 200):
        raise typer.BadParameter(f"{text!r} is no hold; use points from 1 to 200 and a time, such as 5:10m or 5:0")
    return HoldRule(min_change=int(points), for_seconds=seconds(time_))


def moment(text: str, now: float | None = None) -> float:
    """The end of a pause in unix seconds: ISO 8601 (local time unless it has a zone), or a duration from now.

    Raises typer.BadParameter for anything else and for the past.
    """
    now = time.time() if now is None else now
    if _DURATION.fullmatch(text):
        at = now + seconds(text)
    else:
        try:
            # A time without a zone is local time.
            at = pause_end(datetime.fromisoformat(text))
        except ValueError:
            raise typer.BadParameter(
                f"{text!r} is not a time; use ISO 8601 such as 2026-12-24T18:00 or 2026-12-24T18:00Z, "
                "or a time from now such as 30m or 2h"
            ) from None
    if at <= now:
        raise typer.BadParameter(f"{text!r} is in the past")
    return at


def past(text: str, now: float | None = None) -> float:
    """A past time in unix seconds: ISO 8601 (local time unless it has a zone), or how long ago.

    Raises typer.BadParameter for anything else.
    """
    if _DURATION.fullmatch(text):
        return (time.time() if now is None else now) - seconds(text)
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is not a time; use ISO 8601 such as 2026-12-24T18:00 or 2026-12-24T18:00Z, "
            "or how long ago such as 30m or 2h"
        ) from None


def _too_long(text: str) -> typer.BadParameter:
    shown = text if len(text) <= _LONGEST else text[:20] + "..."
    return typer.BadParameter(f"{shown!r} is too long; at most {MAX_SECONDS} seconds (68 years) are possible")
