"""Which names and servers a scorer may use, and which texts of servers its author may see. Pure functions.

A score name belongs to one scorer, and so does a scorer's own name, which several namespaces may use.

The hub and the agents send requests to the servers that a scorer names, which its author may be unable to reach. A
status with the body of a response would show internal pages. Therefore statuses of scorers outside of the hub's own
namespace contain only status and kind of a failure; operators see the responses in `dsf history` and on the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dsf.api.nameclaims import NameClaims, Wish, config_digest, former_owners, refusal, settle
from dsf.api.naming import AllowedNames, sanitize_resource_name
from dsf.api.scorer import FailedCycle
from dsf.api.summary import ScorerSummary
from dsf.api.types import NAME_CONFLICT
from dsf.api.urls import TokenHosts, base_url
from dsf.hub.scorerplan import NAME_NOT_ALLOWED, Obstacle, ScorerPlan


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
    """True if what Redis has under a scorer's name belongs to the one in this namespace; empty if not stored."""
    return owner in ("", namespace)


def decide(scorers: Mapping[str, ScorerPlan], rules: NameRules, now: int) -> tuple[NameClaims, dict[str, Obstacle]]:
    """The claims of all names, and by key (`namespace/name`) why scorers have not theirs."""
    created: dict[str, datetime | None] = dict.fromkeys(rules.unreadable)
    created |= {key: plan.scorer.metadata.creation_timestamp for key, plan in scorers.items()}
    name_claims = settle(
        rules.claims.scorers, (Wish(key, _name(key), at) for key, at in created.items()), now, rules.home
    )
    obstacles: dict[str, Obstacle] = {}
    wishes: dict[str, Wish] = {}
    for key, at in created.items():
        score_name = scorers[key].score_name if key in scorers else None
        wished: str | None = ""
        if why := refusal(f"scorer name {_name(key)!r}", name_claims.get(_name(key), ()), key):
            # A refused scorer claims no score name either.
            obstacles[key] = Obstacle(NAME_CONFLICT, why)
        elif score_name is not None and (why := rules.allowed.refusal(_namespace(key), score_name)):
            obstacles[key] = Obstacle(NAME_NOT_ALLOWED, why)
        else:
            wished = None if score_name is None else sanitize_resource_name(score_name)
        wishes[key] = Wish(key, wished, at, _config(scorers[key]) if wished else "")
    before = rules.claims
    former = former_owners(before.scores, before.former, wishes.values(), now)
    scores = settle(before.scores, wishes.values(), now, rules.home, former)
    for key, wish in wishes.items():
        if wish.name and (why := refusal(_described(scorers[key], wish.name), scores.get(wish.name, ()), key)):
            obstacles[key] = Obstacle(NAME_CONFLICT, why)
    return NameClaims(name_claims, scores, former), {key: why for key, why in obstacles.items() if key in scorers}


def _config(plan: ScorerPlan) -> str:
    """Return the digest of the `/config` that sets the score name; empty if the spec sets it."""
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


#: At the end of a message without the answer.
NOT_SHOWN: Final = "what it answered is shown only to scorers in the hub's own namespace"

_STATUS: Final = re.compile(r"\bstatus ([1-5][0-9]{2})\b")


def server_refusal(allowed: TokenHosts, urls: Iterable[str]) -> str:
    """Why a scorer of another namespace may not name one of these servers; empty if it may. Without a list any may."""
    if not allowed:
        return ""
    for url in urls:
        if not allowed.allow(url):
            return (
                f"scorers outside of the hub's own namespace may not name {_server(url)}: have the hub's admin add it "
                "to DSF_SCORER_HOSTS (the chart's hubSetting.scorerHosts)"
            )
    return ""


def servers_of(summary: ScorerSummary) -> list[str]:
    """URLs of all servers that agents request for a scorer; of token servers, those that its author named."""
    urls = [summary.scoring_endpoint, *(source.source_endpoint for source in summary.each_source)]
    for access in summary.accesses:
        urls += [access.proxy_url or "", *access.methods.named_servers]
    return [url for url in urls if url]


def _server(url: str) -> str:
    try:
        return base_url(url)
    except ValueError:
        return "this server"


def kind_of(reason: str, status: int | None) -> str:
    """A failure by its kind alone: its reason in words, and the status of the answer if there was one."""
    words = reason.replace("_", " ")
    return f"{words}, status {status}" if status else words


def without_answers(failures: Iterable[FailedCycle]) -> list[FailedCycle]:
    """The failures of cycles without the servers' texts, which agents put into messages."""
    return [
        failure.model_copy(update={"message": kind_of(failure.reason, _status(failure.message))})
        for failure in failures
    ]


def _status(message: str) -> int | None:
    match = _STATUS.search(message)
    return int(match[1]) if match else None
