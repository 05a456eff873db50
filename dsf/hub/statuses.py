"""Writing statuses: only when they differ, and with an event when a condition says something new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsf.api.meta import Condition
from dsf.api.scorer import DynamicScorerStatus
from dsf.api.scoringconfig import DynamicScoringConfigStatus
from dsf.backends.protocol import Backend, ObjectKey
from dsf.errors import ObjectNotFoundError
from dsf.hub.conditions import IGNORED

#: Reasons of a state on the way to another one, or that another condition tells about.
_QUIET: Final = frozenset({"Distributing", "NotDistributed"})
#: Conditions that are bad news when they hold.
_BAD_WHEN_TRUE: Final = frozenset({IGNORED})


def write_status(
    backend: Backend,
    key: ObjectKey,
    before: Sequence[Condition],
    status: DynamicScorerStatus | DynamicScoringConfigStatus,
) -> None:
    """Make `status` the object's status; `before` are the conditions it has now. Raises BackendError."""
    stored = backend.get(*key)
    written = status.to_manifest()
    if stored is None or stored.get("status") == written:
        return
    try:
        backend.update_status(*key, written)
    except ObjectNotFoundError:
        # Gone since it was read; that is told as a change of its own.
        return
    known = {condition.type: (condition.status, condition.reason) for condition in before}
    for condition in status.conditions:
        is_news = known.get(condition.type) != (condition.status, condition.reason)
        if is_news and condition.status != "Unknown" and condition.reason not in _QUIET:
            is_good = (condition.status == "True") != (condition.type in _BAD_WHEN_TRUE)
            backend.event(key, "Normal" if is_good else "Warning", condition.reason, condition.message)
