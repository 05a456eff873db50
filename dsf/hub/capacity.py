"""Selection of the scorers that fit into a cluster's ManifestWork, if not all do. Pure functions.

All scorers of a cluster share one object, and a hub that tried to write too much of it could write nothing: no new
scorer, no removal, no rotated Secret. Therefore scorers are left out, in an order that nobody can turn against others:
those of the hub's own namespace come first, each other namespace has an equal share of the rest and what others leave
of theirs, and in a namespace older scorers come before newer ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

#: Bytes of all manifests in one ManifestWork until the API server refuses that many. A ConfigMap holds 1 MiB, and etcd
#: 1.5 MiB per object. OCM's webhook allows 500 KiB by default; the refusal names its limit.
MOST: Final = 1024 * 1024
#: Bytes of the ManifestWork that do not belong to a scorer: the ConfigMap without summaries, Role and RoleBinding.
_FRAME: Final = 4 * 1024
#: OCM: "the size of manifests is 1663352 bytes which exceeds the 512000 limit"; API server, etcd: "... too large".
_OCM_LIMIT: Final = re.compile(r"exceeds the (\d+) limit")
_TOO_LARGE: Final = re.compile(r"too large|larger than max", re.IGNORECASE)
#: Go escapes these in JSON, Python does not.
_ESCAPED_BY_GO: Final = re.compile(r"[<>&]")
_EXTRA_BYTES: Final = len(r"\u003c") - 1


@dataclass(frozen=True)
class Load:
    """Size of a scorer in a cluster's ManifestWork."""

    #: `namespace/name`.
    key: str
    created: datetime | None
    #: Bytes without Secrets.
    size: int
    #: The hub's Secrets that are delivered with it, and their bytes. Scorers may share them.
    secrets: Mapping[str, int]

    @property
    def namespace(self) -> str:
        """The scorer's namespace."""
        return self.key.partition("/")[0]

    @property
    def whole(self) -> int:
        """Bytes with all Secrets."""
        return self.size + sum(self.secrets.values())


def size_of(manifest: Any) -> int:
    """Bytes of a manifest, or of a part of one, at the API server; never less than there."""
    text = json.dumps(manifest, separators=(",", ":"))
    return len(text) + _EXTRA_BYTES * len(_ESCAPED_BY_GO.findall(text))


def fit(loads: Iterable[Load], limit: int) -> bool:
    """Whether all of these fit, whatever they share."""
    return sum(load.whole for load in loads) + _FRAME <= limit


def left_out(loads: Iterable[Load], own_namespace: str, limit: int) -> Iterator[tuple[str, str]]:
    """(key, why) of the scorers of one cluster that are not delivered."""
    by_namespace: dict[str, list[Load]] = {}
    for load in sorted(loads, key=lambda load: (load.created or _NOT_CREATED, load.key)):
        by_namespace.setdefault(load.namespace, []).append(load)
    room = limit - _FRAME
    own = by_namespace.pop(own_namespace, [])
    excluded, used = _first_that_fit(own, room)
    # Equal shares: a namespace that wants less than its share leaves the rest to the others.
    wanted = {name: sum(load.whole for load in loads) for name, loads in by_namespace.items()}
    room -= used
    for position, name in enumerate(sorted(wanted, key=lambda name: (wanted[name], name))):
        share = min(wanted[name], room // (len(wanted) - position))
        more, _ = _first_that_fit(by_namespace[name], share)
        excluded += more
        room -= share
    for load in excluded:
        yield load.key, _why(load, own_namespace, limit)


def _first_that_fit(loads: Iterable[Load], room: int) -> tuple[list[Load], int]:
    """Return the loads that do not fit, and the bytes of those that do."""
    excluded: list[Load] = []
    secrets: set[str] = set()
    used = 0
    for load in loads:
        need = load.size + sum(size for name, size in load.secrets.items() if name not in secrets)
        if used + need > room:
            excluded.append(load)
            continue
        used += need
        secrets |= load.secrets.keys()
    return excluded, used


def _why(load: Load, own_namespace: str, limit: int) -> str:
    order = "older scorers come first"
    if load.namespace != own_namespace:
        order = f"those of namespace {own_namespace} come first, then each namespace has an equal share, {order}"
    return (
        f"no room: a cluster's ManifestWork holds {limit // 1024} KiB for all its scorers and their Secrets, this one "
        f"needs {load.whole / 1024:.1f} KiB, and {order}; shorten queries, remove scorers, or let them run on fewer "
        "clusters (spec.clusterSelector, masks)"
    )


def lower(limit: int, refusal: str) -> int | None:
    """A lower limit after the API server refused a ManifestWork; None if its size was not the cause."""
    named = _OCM_LIMIT.search(refusal)
    if named is None and not _TOO_LARGE.search(refusal):
        return None
    # A limit that was kept: it counts in some other way.
    lowered = int(named[1]) if named is not None and int(named[1]) < limit else limit * 3 // 4
    # A lower limit is not believed: some other rule refuses the object.
    return lowered if lowered >= 64 * 1024 else None


# A scorer without a creation time is not stored yet: every stored one is older.
_NOT_CREATED: Final = datetime.max.replace(tzinfo=UTC)
