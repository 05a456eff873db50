"""Decides which names and servers a scorer may use, and which response texts its author may see. Pure functions.

Each score name belongs to one scorer. Each scorer name belongs to one scorer, too, even if scorers in several
namespaces have it.

The hub and the agents send requests to the servers that a scorer names, which its author may be unable to reach. A
scorer status that quotes a response could reveal internal pages to the author. Therefore the status of a scorer outside
of the hub's own namespace contains only the HTTP status and the kind of a failure. Operators see the responses in
`dsf history` and on the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from dsf.api.nameclaims import (
    NameClaims,
    NameRequest,
    compute_config_digest,
    explain_refusal,
    find_former_owners,
    update_queues,
)
from dsf.api.naming import AllowedNames, sanitize_resource_name
from dsf.api.scorer import FailedCycle
from dsf.api.summary import ScorerSummary
from dsf.api.types import NAME_CONFLICT
from dsf.api.urls import TokenHosts, get_base_url
from dsf.hub.scorerplan import NAME_NOT_ALLOWED, Obstacle, ScorerPlan


@dataclass(frozen=True)
class NameRules:
    """The inputs, besides the scorers, that decide about names."""

    #: The stored claims.
    claims: NameClaims = field(default_factory=NameClaims)
    #: The hub's own namespace.
    home: str = ""
    #: The score names that each namespace may use.
    allowed: AllowedNames = field(default_factory=AllowedNames)
    #: Keys (`namespace/name`) of unreadable scorers, which keep their names.
    unreadable: frozenset[str] = frozenset()


NO_RULES: Final = NameRules()


def is_owner(owner: str, namespace: str) -> bool:
    """Return True if `owner`, the stored namespace of a scorer name, is this namespace or empty (not stored)."""
    return owner in ("", namespace)


def decide_names(
    scorers: Mapping[str, ScorerPlan], rules: NameRules, now: int
) -> tuple[NameClaims, dict[str, Obstacle]]:
    """Return the claims on all names, and the obstacles of scorers that do not own their names.

    `scorers` and the obstacles are keyed by `namespace/name`; `now` is in Unix seconds.
    """
    creation_times: dict[str, datetime | None] = dict.fromkeys(rules.unreadable)
    creation_times |= {key: plan.scorer.metadata.creation_timestamp for key, plan in scorers.items()}
    name_claims = update_queues(
        rules.claims.scorers,
        (NameRequest(key, _parse_name(key), created_at) for key, created_at in creation_times.items()),
        now,
        rules.home,
    )
    obstacles: dict[str, Obstacle] = {}
    name_requests: dict[str, NameRequest] = {}
    for key, created_at in creation_times.items():
        score_name = scorers[key].score_name if key in scorers else None
        requested_name: str | None = ""
        if refusal := explain_refusal(f"scorer name {_parse_name(key)!r}", name_claims.get(_parse_name(key), ()), key):
            # A scorer without its own name must not claim a score name.
            obstacles[key] = Obstacle(NAME_CONFLICT, refusal)
        elif score_name is not None and (refusal := rules.allowed.explain_refusal(_parse_namespace(key), score_name)):
            obstacles[key] = Obstacle(NAME_NOT_ALLOWED, refusal)
        else:
            requested_name = None if score_name is None else sanitize_resource_name(score_name)
        name_requests[key] = NameRequest(
            key, requested_name, created_at, _digest_config(scorers[key]) if requested_name else ""
        )
    stored_claims = rules.claims
    former_owners = find_former_owners(stored_claims.scores, stored_claims.former, name_requests.values(), now)
    score_claims = update_queues(stored_claims.scores, name_requests.values(), now, rules.home, former_owners)
    for key, name_request in name_requests.items():
        if name_request.name and (
            refusal := explain_refusal(
                _describe_score_name(scorers[key], name_request.name), score_claims.get(name_request.name, ()), key
            )
        ):
            obstacles[key] = Obstacle(NAME_CONFLICT, refusal)
    return NameClaims(name_claims, score_claims, former_owners), {
        key: refusal for key, refusal in obstacles.items() if key in scorers
    }


def _digest_config(plan: ScorerPlan) -> str:
    """Return the digest of the `/config` that sets the score name; empty if the spec sets it."""
    spec = plan.scorer.spec
    params = spec.scoring.params
    return "" if params is not None and params.name == plan.score_name else compute_config_digest(spec.config_url)


def _describe_score_name(scorer: ScorerPlan, object_name: str) -> str:
    description = f"score name {scorer.score_name!r}"
    return (
        description
        if object_name == scorer.score_name
        else f"{description}, which becomes the object name {object_name!r},"
    )


def _parse_namespace(key: str) -> str:
    return key.partition("/")[0]


def _parse_name(key: str) -> str:
    return key.partition("/")[2]


#: Text in a message in place of the response.
RESPONSE_HIDDEN: Final = "its response is shown only to scorers in the hub's own namespace"

_STATUS_CODE_PATTERN: Final = re.compile(r"\bstatus ([1-5][0-9]{2})\b")


def find_server_refusal(allowed: TokenHosts, urls: Iterable[str]) -> str:
    """Return why a scorer outside of the hub's namespace may not use one of these servers; empty if it may use all.

    Without `allowed` servers, all are allowed.
    """
    if not allowed:
        return ""
    for url in urls:
        if not allowed.allow(url):
            return (
                f"scorers outside of the hub's own namespace may not name {_format_server(url)}: have the hub's admin "
                "add it to DSF_SCORER_HOSTS (the chart's hubSetting.scorerHosts)"
            )
    return ""


def list_servers(summary: ScorerSummary) -> list[str]:
    """Return the URLs of all servers that agents request for a scorer, except token servers not set by its author."""
    urls = [summary.scoring_endpoint, *(source.source_endpoint for source in summary.each_source)]
    for access in summary.accesses:
        urls += [access.proxy_url or "", *access.methods.named_servers]
    return [url for url in urls if url]


def _format_server(url: str) -> str:
    try:
        return get_base_url(url)
    except ValueError:
        return "this server"


def describe_failure(reason: str, status: int | None) -> str:
    """Return a failure's reason in words and the response's status, if any, without the response text."""
    words = reason.replace("_", " ")
    return f"{words}, status {status}" if status else words


def remove_response_texts(failures: Iterable[FailedCycle]) -> list[FailedCycle]:
    """Return the failures of cycles without the response texts that agents quote in messages."""
    return [
        failure.model_copy(update={"message": describe_failure(failure.reason, _parse_status(failure.message))})
        for failure in failures
    ]


def _parse_status(message: str) -> int | None:
    match = _STATUS_CODE_PATTERN.search(message)
    return int(match[1]) if match else None
