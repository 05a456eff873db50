"""Messages and stored values as they were recorded, of this schema version and its neighbours.

They stay as they are when the code changes: what was sent once must be understood for one more version. Signed with
the master secret `5e` x 32 for the cluster `worker01`; ticks expire in the year 2100.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: A version that this one must understand.
NAMES = ("older", "current", "newer")


def recorded(name: str) -> dict[str, Any]:
    """Return the recorded cluster, scorer, entry, override, result, tick and summaries, or a frame of `refused`."""
    recording: dict[str, Any] = json.loads((Path(__file__).parent / f"{name}.json").read_text(encoding="utf-8"))
    return recording
