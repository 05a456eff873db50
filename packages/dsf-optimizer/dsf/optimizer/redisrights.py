"""What the optimiser may do in the hub's Redis, and the key of its own there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsf import keys
from dsf.redisacl.rules import CLIENT, RECORD, SCRIPTS, SEND_NOW, selector

#: hash namespace -> the newest proposal there beside the plan in force.
PLANS: Final = "dsf:plans"

_WRITE: Final = selector("hset hdel hexists hlen", rw=[PLANS])
_READ: Final = selector("exists hgetall", r=[PLANS])

#: The optimiser sends ticks and reads the scores from the hub's objects: it may not read scores, books or history here.
RIGHTS: Final[Mapping[str, list[str]]] = {
    "optimizer": [
        *CLIENT,
        *SCRIPTS,
        # Existing names, also for messages about unknown ones; and how long a run may take.
        selector("hget hgetall", r=[keys.SCORERS, keys.CLUSTERS, keys.ENTRIES, keys.OVERRIDES]),
        *SEND_NOW,
        *RECORD,
        _WRITE,
    ],
    "operator": [_WRITE, _READ],
    "web": [_READ],
}
