"""Writes statuses: only changes, with an event for each new condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from dsf.api.meta import Condition
from dsf.backends.protocol import Backend, Manifest, ObjectKey
from dsf.errors import ObjectNotFoundError
from dsf.hub.cellstatus import Status, others, part_of, summed
from dsf.hub.conditions import IGNORED

#: Reasons of transitional states, or covered by another condition.
_QUIET: Final = frozenset({"Distributing", "NotDistributed"})
#: Conditions that are bad if True.
_BAD_WHEN_TRUE: Final = frozenset({IGNORED})


def write_status(backend: Backend, key: ObjectKey, before: Sequence[Condition], status: Status) -> None:
    """Make `status` the object's status, or this cell's part of it; `before` are its current conditions.

    Raises BackendError.
    """
    stored = backend.get(*key)
    if stored is None:
        return
    cells = backend.shared_by
    found = stored.get("status") or {}
    if cells.own and not cells.is_first:
        # Only the first cell creates events.
        _write(backend, key, found, {"cells": [part_of(status, cells.own).to_manifest()]}, part=cells.own)
        return
    if cells.own:
        known = _read(found, status)
        before, status = known.conditions, summed(status, known, cells)
        listed = {"cells": [one for one in found.get("cells") or () if one not in others(found, cells)]}
        found = {**found, **listed}
    if not _write(backend, key, found, status.to_manifest()):
        return
    told = {condition.type: (condition.status, condition.reason) for condition in before}
    events: set[tuple[str, str]] = set()
    for condition in status.conditions:
        is_news = told.get(condition.type) != (condition.status, condition.reason)
        # Several conditions may have one cause.
        is_news = is_news and (condition.reason, condition.message) not in events
        if is_news and condition.status != "Unknown" and condition.reason not in _QUIET:
            events.add((condition.reason, condition.message))
            is_good = (condition.status == "True") != (condition.type in _BAD_WHEN_TRUE)
            backend.event(key, "Normal" if is_good else "Warning", condition.reason, condition.message)


def _write(backend: Backend, key: ObjectKey, found: Manifest, wanted: Manifest, *, part: str = "") -> bool:
    """Returns whether anything was written; with `part` only that one is compared."""
    if part:
        found = {"cells": [one for one in found.get("cells") or () if one.get("name") == part]}
    if found == wanted:
        return False
    try:
        backend.update_status(*key, wanted)
    except ObjectNotFoundError:
        # Deleted since it was read; that triggers its own event.
        return False
    return True


def _read(found: Manifest, like: Status) -> Status:
    try:
        return type(like).model_validate(found, by_alias=True)
    except ValidationError:
        # Edited, or of another version: treat as missing.
        return type(like)()
