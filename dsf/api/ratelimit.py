"""Rates such as `10/s`."""

from __future__ import annotations

import re
from typing import Final

#: Syntax of a rate: a positive number of cycles per second, minute or hour.
RATE_PATTERN: Final = "^[1-9][0-9]{0,8}/[smh]$"

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


def parse_rate(text: str) -> float:
    """A rate such as `10/s`, `30/m` or `100/h` as a number per second. Raises ValueError for anything else."""
    # fullmatch, since `$` alone would accept a trailing line break.
    if re.fullmatch(RATE_PATTERN, text) is None:
        msg = f"{text!r} is not a rate: write a whole number from 1 on and /s, /m or /h, such as 10/s or 30/m"
        raise ValueError(msg)
    number, _, unit = text.partition("/")
    return int(number) / _SECONDS[unit]
