"""The optimiser's rights in the hub's Redis, and its key there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsf import keys
from dsf.redisacl.rules import CLIENT, RECORD, SCRIPTS, SEND_NOW, selector

#: Hash: namespace -> the newest proposal beside the plan in force.
PLANS: Final = "dsf:plans"

_WRITE: Final = selector("hset hdel hexists hlen", rw=[PLANS])
_READ: Final = selector("exists hgetall", r=[PLANS])

#: The optimiser sends ticks, and reads scores from the hub's objects. It may not read scores, books or history in
#: Redis.
RIGHTS: Final[Mapping[str, list[str]]] = {
    "optimizer": [
        *CLIENT,
        *SCRIPTS,
        # Names, also for messages about unknown ones, and the maximum duration of a run.
        selector("hget hgetall", r=[keys.SCORERS, keys.CLUSTERS, keys.ENTRIES, keys.OVERRIDES]),
        *SEND_NOW,
        *RECORD,
        _WRITE,
    ],
    "operator": [_WRITE, _READ],
    "web": [_READ],
}
