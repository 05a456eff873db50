"""Writes statuses: only changes, with an event for each new condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsf.api.meta import Condition
from dsf.api.scorer import DynamicScorerStatus
from dsf.api.scoringconfig import DynamicScoringConfigStatus
from dsf.api.types import ConditionType
from dsf.backends.protocol import Backend, ObjectKey
from dsf.errors import ObjectNotFoundError
from dsf.hub.conditions import IGNORED

#: Reasons of transitional states, or covered by another condition, as all that Ready says.
_QUIET: Final = frozenset({"Distributing", "NotDistributed"})
#: Conditions that are bad if True.
_BAD_WHEN_TRUE: Final = frozenset({IGNORED})


def write_status(
    backend: Backend,
    key: ObjectKey,
    before: Sequence[Condition],
    status: DynamicScorerStatus | DynamicScoringConfigStatus,
) -> None:
    """Make `status` the object's status; `before` are its current conditions.

    Raises BackendError.
    """
    stored = backend.get(*key)
    wanted = status.to_manifest()
    if stored is None or (stored.get("status") or {}) == wanted:
        return
    try:
        backend.update_status(*key, wanted)
    except ObjectNotFoundError:
        # Deleted since it was read; that triggers its own event.
        return
    known = {condition.type: (condition.status, condition.reason) for condition in before}
    events: set[tuple[str, str]] = set()
    for condition in status.conditions:
        is_news = known.get(condition.type) != (condition.status, condition.reason)
        # Several conditions may have one cause.
        is_news = is_news and (condition.reason, condition.message) not in events
        is_loud = condition.type != ConditionType.Ready and condition.reason not in _QUIET
        if is_news and condition.status != "Unknown" and is_loud:
            events.add((condition.reason, condition.message))
            is_good = (condition.status == "True") != (condition.type in _BAD_WHEN_TRUE)
            backend.event(key, "Normal" if is_good else "Warning", condition.reason, condition.message)
