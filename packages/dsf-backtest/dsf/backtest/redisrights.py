"""The key of backtests in the hub's Redis, and the rights to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsf.redisacl.rules import selector


def make_backtests_key(scorer: str) -> str:
    """Return the key of the hash (id -> KeptRun) with the newest backtests and comparisons of a scorer. It expires."""
    return f"dsf:backtests:{scorer}"


_KEEP: Final = [selector("hset hkeys hdel hgetall expire", rw=[make_backtests_key("*")])]

RIGHTS: Final[Mapping[str, list[str]]] = {"operator": _KEEP, "web": _KEEP}
