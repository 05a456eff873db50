"""The optimiser's key in the hub's Redis, and the rights of users to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsf import keys
from dsf.redisacl.rules import CLIENT, RECORD, SCRIPTS, SEND_NOW, selector

#: Key of a hash, namespace -> PlanComparison.
PLANS: Final = "dsf:plans"

_WRITE: Final = selector("hset hdel hexists hlen", rw=[PLANS])
_READ: Final = selector("exists hgetall", r=[PLANS])

#: The optimiser sends ticks, and reads scores from the hub's objects. It may not read scores, books or history in
#: Redis.
RIGHTS: Final[Mapping[str, list[str]]] = {
    "optimizer": [
        *CLIENT,
        *SCRIPTS,
        # Names, which messages about unknown names list, and the intervals, after which a run expires.
        selector("hget hgetall", r=[keys.SCORERS, keys.CLUSTERS, keys.ENTRIES, keys.OVERRIDES]),
        *SEND_NOW,
        *RECORD,
        _WRITE,
    ],
    "operator": [_WRITE, _READ],
    "web": [_READ],
}
