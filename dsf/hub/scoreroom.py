"""How many bytes of Redis the scores of each namespace may take. Pure functions.

All scores are in one Redis. A namespace that filled it would end everybody's scoring, so each has a share: the hub's
own namespace half, and the others equal parts of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dsf.store.registry import ScorerRecord

#: Part of Redis' `maxmemory` for scores. The schedule, books, histories, queues and mailboxes need the rest.
_FOR_SCORES: Final = 0.5
#: `maxmemory` of a Redis that has none: the chart's default.
DEFAULT_MEMORY: Final = 2 * 1024**3


def score_rooms(namespaces: Iterable[str], home: str, max_memory: int) -> dict[str, int]:
    """Return the bytes for the scores of each namespace; `home` is the hub's own, `max_memory` that of Redis."""
    present = set(namespaces)
    room = int((max_memory or DEFAULT_MEMORY) * _FOR_SCORES)
    others = present - {home}
    if not others:
        return dict.fromkeys(present, room)
    own = {home: room // 2} if home in present else {}
    share = (room - sum(own.values())) // len(others)
    return own | dict.fromkeys(others, share)


def with_rooms(records: Mapping[str, ScorerRecord], home: str, max_memory: int) -> dict[str, ScorerRecord]:
    """Return the records with the room of their namespace's scores."""
    rooms = score_rooms((record.namespace for record in records.values()), home, max_memory)
    return {name: record.model_copy(update={"score_room": rooms[record.namespace]}) for name, record in records.items()}
