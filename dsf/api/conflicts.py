"""Conflicts of score names: the older scorer keeps the name."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from dsf.api.naming import sanitize_resource_name

#: Condition reason of a scorer without its name.
CONFLICT_REASON: Final = "ScoreNameConflict"

# A scorer without a creation time is not stored yet: every stored one is older.
_NOT_CREATED: Final = datetime.max.replace(tzinfo=UTC)


class NameClaim(NamedTuple):
    """A scorer and the score name it resolved to."""

    name: str
    namespace: str
    created: datetime | None
    score_name: str

    @property
    def key(self) -> str:
        """`namespace/name`, as `DynamicScorer.key`."""
        return f"{self.namespace}/{self.name}"


def find_conflicts(claims: Iterable[NameClaim]) -> dict[str, str]:
    """The keys of the scorers that must not run, each with a message that names the owner of the name.

    Two scorers conflict if their score names are equal or map to one object name, or if they have one name in two
    namespaces: agents identify a scorer by name only. The older one keeps the name; at equal age, the first by key. A
    scorer that lost claims nothing.
    """
    conflicts: dict[str, str] = {}
    by_resource: dict[str, NameClaim] = {}
    by_name: dict[str, NameClaim] = {}
    for claim in sorted(claims, key=lambda claim: (claim.created or _NOT_CREATED, claim.key)):
        resource = sanitize_resource_name(claim.score_name)
        if (winner := by_resource.get(resource)) is not None:
            if winner.score_name == claim.score_name:
                conflicts[claim.key] = f"score name {claim.score_name!r} belongs to {winner.key}, which had it first"
            else:
                conflicts[claim.key] = (
                    f"score name {claim.score_name!r} becomes the object name {resource!r}, which belongs to "
                    f"{winner.score_name!r} of {winner.key}, which had it first"
                )
        elif (winner := by_name.get(claim.name)) is not None:
            conflicts[claim.key] = f"scorer name {claim.name!r} belongs to {winner.key}, which had it first"
        else:
            by_resource[resource] = by_name[claim.name] = claim
    return conflicts
