"""Claims of names: which scorer holds a name, and which ones wait for it. Pure functions.

The holder of a name keeps it until it gives it up: by claiming another one, or by its deletion. A deleted holder's name
is kept for it for some minutes, because tools of GitOps replace an object by deleting and re-creating it; only a scorer
of its namespace that was created about then takes the name over, since that is a rename. When a name is free, the hub's
own namespace goes before others, then the claim that waits longest, then the older object. So neither the age of an
object nor a changed `/config` takes a name away from another scorer.

The hub stores the claims outside of the objects: their authors cannot edit them, and they outlive the objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from dsf.api.meta import rfc3339

#: Seconds for which the name of a deleted scorer is kept for its re-creation. A tool that deletes and creates in two
#: passes needs minutes.
KEPT: Final = 300
#: Seconds before a scorer's deletion from which on a new one of its namespace counts as the same under another name.
#: Tools of GitOps create the new object first and remove the old one in a later pass.
RENAMED: Final = 300
#: Max. characters of the stored claims of one kind by other namespaces than the hub's. A ConfigMap has 1 MiB for both
#: kinds: the hub's own namespace always has room.
ROOM_OF_OTHERS: Final = 200_000

# An object without a creation time is not stored yet: every stored one is older.
_NOT_CREATED: Final = datetime.max.replace(tzinfo=UTC)


class NameClaim(NamedTuple):
    """A scorer's claim of a name. Times are whole unix seconds."""

    #: `namespace/name` of the scorer.
    owner: str
    since: int
    #: When its owner was deleted; 0 while it exists.
    gone: int = 0

    @property
    def expires(self) -> int:
        """When the name of a deleted holder becomes free."""
        return self.gone + KEPT


#: By name: the holder's claim, then those that wait.
Queues = Mapping[str, tuple[NameClaim, ...]]


class Wish(NamedTuple):
    """The name that an existing scorer claims."""

    #: `namespace/name`.
    owner: str
    #: Empty if it claims none; None if that is unknown now: it then keeps the name that it holds.
    name: str | None
    created: datetime | None = None


@dataclass(frozen=True)
class NameClaims:
    """All claims: of the scorers' own names, by which agents and Redis know them, and of score names."""

    scorers: Queues = field(default_factory=dict)
    #: By object name (`sanitize_resource_name`): two score names with one object name are one.
    scores: Queues = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> NameClaims:
        """From the text of `dump`; none from an empty one. Raises ValueError."""
        stored = json.loads(text) if text else {}
        try:
            return cls(_parsed(stored.get("scorers", {})), _parsed(stored.get("scores", {})))
        except (AttributeError, TypeError) as error:
            raise ValueError(str(error)) from None

    def dump(self) -> str:
        """As JSON; lists instead of objects because thousands must fit into a ConfigMap."""
        queues = {"scorers": self.scorers, "scores": self.scores}
        stored = {
            kind: {
                name: [claim if claim.gone else claim[:2] for claim in queue] for name, queue in sorted(all_.items())
            }
            for kind, all_ in queues.items()
        }
        return json.dumps(stored, separators=(",", ":"), ensure_ascii=False)

    @property
    def next_end(self) -> float:
        """Unix time at which the first name of a deleted scorer becomes free; infinite without any."""
        gone = (queue[0] for queues in (self.scorers, self.scores) for queue in queues.values() if queue[0].gone)
        return min((float(claim.expires) for claim in gone), default=float("inf"))


def settle(before: Queues, wishes: Iterable[Wish], now: int, home: str) -> dict[str, tuple[NameClaim, ...]]:
    """The claims after those `before`, for all existing scorers' wishes; `home` is the hub's own namespace."""
    wished = {wish.owner: wish for wish in wishes}
    wanted = {wish.owner: wish.name for wish in wished.values()}
    holders: dict[str, NameClaim] = {}
    waiting: dict[str, list[NameClaim]] = {}
    for name, queue in before.items():
        holder = _still_held(queue[0], name, wished, now)
        if holder is not None and holder.gone:
            holder = _renamed(holder, name, queue[1:], wished.values(), now) or holder
        if holder is not None:
            holders[name] = holder
        waiting[name] = [claim for claim in queue[1:] if claim != holder and wanted.get(claim.owner) == name]
    claims = [*holders.items(), *((name, claim) for name, queue in waiting.items() for claim in queue)]
    known = {claim.owner for _, claim in claims}
    room = ROOM_OF_OTHERS - sum(_size(name, claim) for name, claim in claims if _is_others(claim, home))
    for wish in sorted(wished.values(), key=lambda wish: (wish.created or _NOT_CREATED, wish.owner)):
        if not wish.name or wish.owner in known:
            continue
        claim = NameClaim(wish.owner, now)
        if _is_others(claim, home):
            room -= _size(wish.name, claim)
            if room < 0:
                continue
        waiting.setdefault(wish.name, []).append(claim)

    def order(claim: NameClaim) -> tuple[bool, int, datetime, str]:
        return _is_others(claim, home), claim.since, wished[claim.owner].created or _NOT_CREATED, claim.owner

    queues: dict[str, tuple[NameClaim, ...]] = {}
    for name in {**holders, **waiting}:
        first = [holders[name]] if name in holders else []
        if queue := (*first, *sorted(waiting.get(name, ()), key=order)):
            queues[name] = queue
    return queues


def refusal(what: str, queue: tuple[NameClaim, ...], owner: str) -> str:
    """Why the scorer `owner` does not get a name, `what`, with these claims; empty if it holds it."""
    if not queue or all(claim.owner != owner for claim in queue):
        return f"{what} cannot be claimed: other namespaces than the hub's have too many scorers"
    holder = queue[0]
    if holder.owner == owner:
        return ""
    if holder.gone:
        return (
            f"{what} is kept until {_text(holder.expires)} for {holder.owner}, which was deleted: it may be re-created"
        )
    return f"{what} belongs to {holder.owner}, which holds it since {_text(holder.since)}"


def _still_held(claim: NameClaim, name: str, wished: Mapping[str, Wish], now: int) -> NameClaim | None:
    """The holder's claim as it is now; None if it gave the name up."""
    wish = wished.get(claim.owner)
    if wish is not None:
        return claim._replace(gone=0) if wish.name in (name, None) else None
    # A clock that was ahead must not keep it longer.
    gone = min(claim.gone or now, now)
    return claim._replace(gone=gone) if now < gone + KEPT else None


def _renamed(
    holder: NameClaim, name: str, waiting: tuple[NameClaim, ...], wishes: Iterable[Wish], now: int
) -> NameClaim | None:
    """The claim of the deleted holder under another name: of its namespace, and created just before or after.

    An older one that claims the name now is not: it, or its scoring API, would take the name away.
    """
    new = [
        wish.owner
        for wish in wishes
        if wish.name == name
        and _namespace(wish.owner) == _namespace(holder.owner)
        and (wish.created or _NOT_CREATED).timestamp() > holder.gone - RENAMED
    ]
    if not new:
        return None
    return next((claim for claim in waiting if claim.owner in new), NameClaim(min(new), now))


def _is_others(claim: NameClaim, home: str) -> bool:
    return _namespace(claim.owner) != home


def _namespace(owner: str) -> str:
    return owner.partition("/")[0]


def _size(name: str, claim: NameClaim) -> int:
    # Characters of a stored claim besides its two names.
    return len(name.encode()) + len(claim.owner) + 30


def _text(at: int) -> str:
    return rfc3339(datetime.fromtimestamp(at, UTC))


def _parsed(stored: Mapping[str, Any]) -> dict[str, tuple[NameClaim, ...]]:
    return {
        name: tuple(NameClaim(str(owner), int(since), *map(int, gone)) for owner, since, *gone in queue)
        for name, queue in stored.items()
        if queue
    }
