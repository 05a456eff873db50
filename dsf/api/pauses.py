"""The end of a pause: one bound for the annotation, the page, the command line and the schedule."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final

#: Latest time (unix seconds) that is stored or shown: 9999-01-01, so that every time zone still has a date for it.
LATEST: Final = 253_370_764_800.0


def pause_end(end: datetime | float) -> float:
    """Return the end of a pause in unix seconds. An end after LATEST, as written for "until further notice", is LATEST.

    Raises ValueError for what is no time.
    """
    try:
        seconds = end.timestamp() if isinstance(end, datetime) else float(end)
    except (OverflowError, OSError):
        # A local time at the edges of the calendar.
        raise ValueError("no time that this machine can tell") from None
    if math.isnan(seconds):
        raise ValueError("no time")
    return min(seconds, LATEST)
