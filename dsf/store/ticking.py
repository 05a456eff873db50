"""Whether beat sends ticks: one judgement for the page, `dsf status`, the exporter's readiness and its metrics."""

from __future__ import annotations

import math
from typing import Any, Final

import redis

from dsf import keys

#: Seconds after which a pair that is due and got no tick means that no beat works. Each due pair gets one within
#: seconds, or a later due time; a standby takes over after 10 s, and a pod restarts in about 30 s.
LATE: Final = 45.0


def ticks_problem(client: redis.Redis, now: float) -> str:
    """Why no ticks are sent at `now` (unix seconds); empty while they are, or none is due. Raises redis.RedisError."""
    oldest: Any = client.zrange(keys.DUE, 0, 0, withscores=True)
    late = now - float(oldest[0][1]) if oldest else -math.inf
    if late <= LATE:
        return ""
    pair = oldest[0][0]
    return f"no ticks are sent: {pair} has been due for {late:.0f} s; beat does not run, or stands still: see its log"
