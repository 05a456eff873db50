"""Decides which scorer holds a name and which scorers wait for the name. Pure functions.

A scorer holds a name until the scorer claims another name or is deleted. After a deletion the name is reserved for some
minutes, because GitOps tools replace an object by deleting it and creating it again. During that time, only a renamed
scorer can take over the name: a scorer in the same namespace that was created at about the time of the deletion. A
scorer that claimed any name shortly before was created again, and is not a renamed scorer. A scorer whose name is set
by a `/config` is a renamed scorer only if the same `/config` named the deleted holder.

A free name goes to a scorer in the hub's own namespace first, then to the claim that has waited longest, then to the
oldest object. Therefore neither the age of an object, nor the order of creation, nor a changed `/config` takes a name
away from another scorer.

The hub stores the claims outside of the objects, so that authors cannot edit the claims, and claims survive the
deletion of objects. Each namespace has a separate store with a limit, so that it cannot use the space of others.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from dsf.api.meta import format_rfc3339

#: Seconds for which the name of a deleted scorer is kept for its re-creation. A tool that deletes and creates in two
#: passes needs minutes.
RESERVATION_SECONDS: Final = 300
#: A new scorer that was created at most this many seconds before a deletion counts as the renamed scorer. GitOps tools
#: create the new object first, and delete the old object in a later pass.
RENAME_SECONDS: Final = 300
#: Maximum size in bytes of a namespace's stored claims of one kind. The ConfigMap has at most 1 MiB for both kinds.
MAX_NAMESPACE_BYTES: Final = 450_000

# Creation time of an object that is not stored yet, and therefore younger than all stored objects.
_NOT_CREATED: Final = datetime.max.replace(tzinfo=UTC)


class NameClaim(NamedTuple):
    """A scorer's claim on a name. Times are whole Unix seconds."""

    #: `namespace/name` of the scorer.
    owner: str
    #: Time of the claim.
    claimed_at: int
    #: Time of the owner's deletion; 0 while the owner exists.
    gone_at: int = 0
    #: Digest of the address of the `/config` that sets the name; empty if the spec sets it.
    config: str = ""
    #: The deleted scorer of which the owner is the renamed scorer; empty without a rename.
    renamed_from: str = ""

    @property
    def expires(self) -> int:
        """Unix time at which the name of a deleted holder becomes free."""
        return self.gone_at + RESERVATION_SECONDS


#: Name -> the holder's claim, then the waiting claims.
Queues = Mapping[str, tuple[NameClaim, ...]]


class NameRequest(NamedTuple):
    """The name that an existing scorer requests."""

    #: `namespace/name`.
    owner: str
    #: Empty if the scorer claims no name. None if its name is currently unknown; then it keeps the name that it has.
    name: str | None
    #: Creation time of the DynamicScorer; None if it is not stored yet.
    created: datetime | None = None
    #: Digest of the address of the `/config` that sets the name; empty if the spec sets it.
    config: str = ""


def compute_config_digest(url: str) -> str:
    """Return the digest of a `/config` address that is stored with a claim."""
    return hashlib.sha256(url.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class NameClaims:
    """All claims on the scorers' own names, by which agents and Redis know them, and on score names."""

    #: Claims by scorer name.
    scorers: Queues = field(default_factory=dict)
    #: Claims by object name (`sanitize_resource_name`), because two score names may result in the same object name.
    scores: Queues = field(default_factory=dict)
    #: Owner that recently gave up or lost a score name -> Unix time until which it counts as a former owner.
    former: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> NameClaims:
        """Return the claims in the texts that `dump` has returned; `texts` are by namespace. Raises ValueError."""
        scorers: _ParsedClaims = {}
        scores: _ParsedClaims = {}
        former: dict[str, int] = {}
        for namespace, text in texts.items():
            document = json.loads(text) if text else {}
            try:
                _parse(namespace, document.get("scorers", {}), scorers)
                _parse(namespace, document.get("scores", {}), scores)
                former |= {f"{namespace}/{name}": int(free_at) for name, free_at in document.get("former", {}).items()}
            except (AttributeError, TypeError) as error:
                raise ValueError(f"namespace {namespace}: {error}") from None
        return cls(_make_queues(scorers), _make_queues(scores), former)

    def dump(self, namespace: str) -> str:
        """Return the claims of one namespace as JSON. Each claim is a short list, so that thousands fit."""
        prefix = f"{namespace}/"
        document = {
            "scorers": _dump_queues(self.scorers, prefix),
            "scores": _dump_queues(self.scores, prefix),
            "former": {
                owner.removeprefix(prefix): free_at
                for owner, free_at in sorted(self.former.items())
                if owner.startswith(prefix)
            },
        }
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False)

    @property
    def next_end(self) -> float:
        """Unix time at which the first name of a deleted scorer becomes free; infinite without any."""
        ending_claims = (
            queue[0] for queues in (self.scorers, self.scores) for queue in queues.values() if queue[0].gone_at
        )
        return min((float(claim.expires) for claim in ending_claims), default=float("inf"))


def find_former_owners(
    previous_queues: Queues, former_owners: Mapping[str, int], name_requests: Iterable[NameRequest], now: int
) -> dict[str, int]:
    """Return the owners that gave up or lost a claim within the last `RESERVATION_SECONDS`, with the end of that time.

    An existing owner stays in the result until it holds a name, because it was re-created and is not a renamed scorer.
    """
    request_by_owner = {name_request.owner: name_request for name_request in name_requests}
    holders = {queue[0].owner for queue in previous_queues.values() if not queue[0].gone_at}
    new_former_owners = {
        owner: min(free_at, now + RESERVATION_SECONDS)
        for owner, free_at in former_owners.items()
        if free_at > now or (owner in request_by_owner and owner not in holders)
    }
    for name, queue in previous_queues.items():
        for position, claim in enumerate(queue):
            name_request = request_by_owner.get(claim.owner)
            # An object that is younger than its claim was re-created between two plans.
            created_at = name_request.created if name_request is not None else None
            is_younger = created_at is not None and claim.claimed_at < int(created_at.timestamp())
            is_replaced = position > 0 and is_younger
            if claim.gone_at or name_request is None or name_request.name not in (name, None) or is_replaced:
                new_former_owners.setdefault(claim.owner, (min(claim.gone_at, now) or now) + RESERVATION_SECONDS)
    return new_former_owners


def update_queues(
    previous_queues: Queues,
    name_requests: Iterable[NameRequest],
    now: int,
    home: str,
    former_owners: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, tuple[NameClaim, ...]]:
    """Return the claims that follow `previous_queues`, for the requests of all existing scorers.

    `home` is the hub's own namespace; `former_owners` (see `find_former_owners`) are not renamed scorers.
    """
    request_by_owner = {name_request.owner: name_request for name_request in name_requests}
    name_by_owner = {name_request.owner: name_request.name for name_request in request_by_owner.values()}
    renaming_requests = _group_by_name(
        name_request for name_request in request_by_owner.values() if name_request.owner not in former_owners
    )
    holders: dict[str, NameClaim] = {}
    waiting_claims: dict[str, list[NameClaim]] = {}
    for name, queue in previous_queues.items():
        holder = _update_holder(queue[0], name, request_by_owner, now, former_owners)
        if holder is not None and holder.gone_at:
            holder = _find_renamed_holder(holder, queue[1:], renaming_requests.get(name, ()), now) or holder
        if holder is not None:
            holders[name] = holder
        waiting_claims[name] = [
            claim._replace(config=request_by_owner[claim.owner].config)
            for claim in queue[1:]
            if name_by_owner.get(claim.owner) == name and (holder is None or claim.owner != holder.owner)
        ]
    claims = [*holders.items(), *((name, claim) for name, queue in waiting_claims.items() for claim in queue)]
    registered_owners = {claim.owner for _, claim in claims}
    bytes_by_namespace: Counter[str] = Counter()
    for name, claim in claims:
        bytes_by_namespace[_parse_namespace(claim.owner)] += _compute_size(name, claim.owner + claim.renamed_from)
    for owner in former_owners.keys() - registered_owners:
        bytes_by_namespace[_parse_namespace(owner)] += _compute_size("", owner)
    for name_request in sorted(
        request_by_owner.values(), key=lambda name_request: (name_request.created or _NOT_CREATED, name_request.owner)
    ):
        if not name_request.name or name_request.owner in registered_owners:
            continue
        size = _compute_size(name_request.name, name_request.owner)
        if bytes_by_namespace[_parse_namespace(name_request.owner)] + size > MAX_NAMESPACE_BYTES:
            continue
        bytes_by_namespace[_parse_namespace(name_request.owner)] += size
        waiting_claims.setdefault(name_request.name, []).append(
            NameClaim(name_request.owner, now, config=name_request.config)
        )

    def order(claim: NameClaim) -> tuple[bool, int, datetime, str]:
        is_foreign = _parse_namespace(claim.owner) != home
        return is_foreign, claim.claimed_at, request_by_owner[claim.owner].created or _NOT_CREATED, claim.owner

    queues: dict[str, tuple[NameClaim, ...]] = {}
    for name in {**holders, **waiting_claims}:
        holder_claims = [holders[name]] if name in holders else []
        if queue := (*holder_claims, *sorted(waiting_claims.get(name, ()), key=order)):
            queues[name] = queue
    return queues


def _group_by_name(name_requests: Iterable[NameRequest]) -> dict[str | None, list[NameRequest]]:
    requests_by_name: dict[str | None, list[NameRequest]] = {}
    for name_request in name_requests:
        requests_by_name.setdefault(name_request.name, []).append(name_request)
    return requests_by_name


def explain_refusal(claimed_name: str, queue: tuple[NameClaim, ...], owner: str) -> str:
    """Return the reason why the scorer `owner` does not hold `claimed_name`; empty if it holds the name."""
    if not queue or all(claim.owner != owner for claim in queue):
        namespace = _parse_namespace(owner)
        return f"{claimed_name} cannot be claimed: namespace {namespace} has too many scorers, or too long names"
    holder = queue[0]
    if holder.owner == owner:
        return ""
    if holder.gone_at:
        free_at = _format_time(holder.expires)
        return f"{claimed_name} is kept until {free_at} for {holder.owner}, which was deleted: it may be re-created"
    return f"{claimed_name} belongs to {holder.owner}, which holds it since {_format_time(holder.claimed_at)}"


def _update_holder(
    claim: NameClaim, name: str, request_by_owner: Mapping[str, NameRequest], now: int, former_owners: Mapping[str, int]
) -> NameClaim | None:
    """Return the holder's current claim; None if the holder gave up the name."""
    name_request = request_by_owner.get(claim.owner)
    if name_request is None and now < (former_until := former_owners.get(claim.renamed_from, 0)):
        # Both scorers are deleted, so the second was not the renamed first one.
        renamed_claim = NameClaim(
            claim.renamed_from, claim.claimed_at, former_until - RESERVATION_SECONDS, claim.config
        )
        return _update_holder(renamed_claim, name, request_by_owner, now, {})
    if name_request is not None:
        if name_request.name is None:
            return claim._replace(gone_at=0)
        return claim._replace(gone_at=0, config=name_request.config) if name_request.name == name else None
    # A deletion time in the future, after a clock change, must not extend the claim.
    gone_at = min(claim.gone_at or now, now)
    return claim._replace(gone_at=gone_at) if now < gone_at + RESERVATION_SECONDS else None


def _find_renamed_holder(
    holder: NameClaim, waiting_claims: tuple[NameClaim, ...], name_requests: Iterable[NameRequest], now: int
) -> NameClaim | None:
    """Return the claim of the scorer that is the deleted holder under another name; None without such a scorer.

    `name_requests` are for this name, by scorers that had no other name. A renamed scorer is in the namespace of the
    holder, was created just before its deletion or afterwards, and has the `/config` of the holder, if any. An older
    scorer is not a renamed scorer, because its author or its scoring API could otherwise take the name away.
    """
    candidate_requests = {
        name_request.owner: name_request
        for name_request in name_requests
        if _parse_namespace(name_request.owner) == _parse_namespace(holder.owner)
        and (name_request.created or _NOT_CREATED).timestamp() > holder.gone_at - RENAME_SECONDS
        and name_request.config in ("", holder.config)
    }
    if not candidate_requests:
        return None
    first_claim = next((claim for claim in waiting_claims if claim.owner in candidate_requests), None) or NameClaim(
        min(candidate_requests), now
    )
    return first_claim._replace(config=candidate_requests[first_claim.owner].config, renamed_from=holder.owner)


def _parse_namespace(owner: str) -> str:
    return owner.partition("/")[0]


def _compute_size(name: str, owner: str) -> int:
    # 60 is an upper bound of the other bytes of a stored claim, also after its owner's deletion.
    return len(name.encode()) + len(owner.encode()) + 60


def _format_time(at: int) -> str:
    return format_rfc3339(datetime.fromtimestamp(at, UTC))


#: Name -> claims, each with True if it is the holder's claim.
_ParsedClaims = dict[str, list[tuple[bool, NameClaim]]]


def _parse(namespace: str, queues: Mapping[str, Any], claims: _ParsedClaims) -> None:
    for name, queue in queues.items():
        for owner, holds, claimed_at, gone_at, config, renamed_from in queue:
            full_renamed_from = f"{namespace}/{renamed_from}" if renamed_from else ""
            claim = NameClaim(f"{namespace}/{owner}", int(claimed_at), int(gone_at), str(config), full_renamed_from)
            claims.setdefault(name, []).append((bool(holds), claim))


def _make_queues(claims_by_name: _ParsedClaims) -> dict[str, tuple[NameClaim, ...]]:
    # If a hub stopped between two writes, a name may have no holder or two holders.
    return {
        name: tuple(
            claim for _, claim in sorted(claims, key=lambda item: (not item[0], item[1].claimed_at, item[1].owner))
        )
        for name, claims in claims_by_name.items()
    }


def _dump_queues(queues: Queues, prefix: str) -> dict[str, list[list[str | int]]]:
    claim_lists: dict[str, list[list[str | int]]] = {}
    for name, queue in sorted(queues.items()):
        for position, claim in enumerate(queue):
            if claim.owner.startswith(prefix):
                owner, renamed_from = claim.owner.removeprefix(prefix), claim.renamed_from.removeprefix(prefix)
                item: list[str | int] = [
                    owner,
                    int(position == 0),
                    claim.claimed_at,
                    claim.gone_at,
                    claim.config,
                    renamed_from,
                ]
                claim_lists.setdefault(name, []).append(item)
    return claim_lists
