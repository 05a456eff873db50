"""Which scorers get their score name, and their own name, which several namespaces may have. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dsf.api.allowednames import AllowedNames
from dsf.api.nameclaims import NameClaims, Wish, config_digest, former_owners, refusal, settle
from dsf.api.naming import sanitize_resource_name
from dsf.api.types import NAME_CONFLICT
from dsf.hub.obstacle import NAME_NOT_ALLOWED, Obstacle
from dsf.hub.scorerplan import ScorerPlan


@dataclass(frozen=True)
class NameRules:
    """Rules about names, besides the scorers."""

    #: As stored.
    claims: NameClaims = field(default_factory=NameClaims)
    #: The hub's own namespace.
    home: str = ""
    allowed: AllowedNames = field(default_factory=AllowedNames)
    #: Keys (`namespace/name`) of unreadable scorers, which keep what they hold.
    unreadable: frozenset[str] = frozenset()


NO_RULES: Final = NameRules()


def is_owner(owner: str, namespace: str) -> bool:
    """Whether what Redis has under a scorer's name belongs to the one in this namespace; empty if not stored."""
    return owner in ("", namespace)


def decide(scorers: Mapping[str, ScorerPlan], rules: NameRules, now: int) -> tuple[NameClaims, dict[str, Obstacle]]:
    """The claims of all names, and by key (`namespace/name`) why scorers have not theirs."""
    created: dict[str, datetime | None] = dict.fromkeys(rules.unreadable)
    created |= {key: plan.scorer.metadata.creation_timestamp for key, plan in scorers.items()}
    own = settle(rules.claims.scorers, (Wish(key, _name(key), at) for key, at in created.items()), now, rules.home)
    refused: dict[str, Obstacle] = {}
    wishes: dict[str, Wish] = {}
    for key, at in created.items():
        score_name = scorers[key].score_name if key in scorers else None
        wished: str | None = ""
        if why := refusal(f"scorer name {_name(key)!r}", own.get(_name(key), ()), key):
            # A refused scorer claims no score name either.
            refused[key] = Obstacle(NAME_CONFLICT, why)
        elif score_name is not None and (why := rules.allowed.refusal(_namespace(key), score_name)):
            refused[key] = Obstacle(NAME_NOT_ALLOWED, why)
        else:
            wished = None if score_name is None else sanitize_resource_name(score_name)
        wishes[key] = Wish(key, wished, at, _config(scorers[key]) if wished else "")
    before = rules.claims
    former = former_owners(before.scores, before.former, wishes.values(), now)
    scores = settle(before.scores, wishes.values(), now, rules.home, former)
    for key, wish in wishes.items():
        if wish.name and (why := refusal(_described(scorers[key], wish.name), scores.get(wish.name, ()), key)):
            refused[key] = Obstacle(NAME_CONFLICT, why)
    return NameClaims(own, scores, former), {key: why for key, why in refused.items() if key in scorers}


def _config(plan: ScorerPlan) -> str:
    """Return the digest of the `/config` that says the score name; empty if the spec says it."""
    spec = plan.scorer.spec
    params = spec.scoring.params
    return "" if params is not None and params.name == plan.score_name else config_digest(spec.config_url)


def _described(scorer: ScorerPlan, object_name: str) -> str:
    what = f"score name {scorer.score_name!r}"
    return what if object_name == scorer.score_name else f"{what}, which becomes the object name {object_name!r},"


def _namespace(key: str) -> str:
    return key.partition("/")[0]


def _name(key: str) -> str:
    return key.partition("/")[2]
