"""Parser of durations that users write, such as `90`, `90s`, `5m`, `1h30m` or `2d`."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION_PATTERN: Final = re.compile(r"(?:\d+[smhd])+|\d+", re.ASCII)


def is_duration(text: str) -> bool:
    """Return True if the text has the format of a duration."""
    return _DURATION_PATTERN.fullmatch(text) is not None


def parse_duration(text: str) -> int:
    """Return a duration in seconds. Raises ValueError for other texts and for more than MAX_SECONDS (68 years)."""
    # Imported late, because it loads pydantic, and each command of `dsf` imports this module.
    from dsf.api.types import MAX_SECONDS

    if not is_duration(text):
        raise ValueError(f"{text!r} is not a time; use seconds such as 90, or 90s, 5m, 1h30m, 2d")
    total = MAX_SECONDS + 1
    # Python refuses to parse numbers with thousands of digits.
    if len(text) <= 100:
        total = sum(int(number) * _UNITS[unit or "s"] for number, unit in re.findall(r"(\d+)([smhd]?)", text))
    if total > MAX_SECONDS:
        raise ValueError(f"{text[:100]!r} is too long; at most {MAX_SECONDS} seconds (68 years) are possible")
    return total
