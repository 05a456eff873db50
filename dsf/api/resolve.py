"""Merges a DynamicScorer with its synced `/config` into the agent's configuration, or the reason against it.

For each field the synced value wins with configSyncMode Full, then the spec, then a default; empty texts and numbers
below 1 are unset. Only the spec sets location, destination, dimension format and auth: a scoring API must not choose
the destination of scores and tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from pydantic.alias_generators import to_camel

from dsf.api.pauses import pause_end
from dsf.api.remoteconfig import RemoteConfig
from dsf.api.resolvereason import ResolveReason
from dsf.api.score import default_validity
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import Authentications, ScoringAuthentication
from dsf.api.servers import Context, Stage, server
from dsf.api.sourcefields import first_positive, source_fields
from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.api.templates import Renderer
from dsf.api.tokenhosts import NO_HOSTS, TokenHosts
from dsf.api.types import PAUSED_UNTIL_ANNOTATION, ConfigSyncMode
from dsf.errors import ResolutionError

DEFAULT_SCORING_PATH: Final = "/scoring"
#: Most bytes of one scorer in the ConfigMap. All scorers of a cluster share it, and OCM delivers at most 500 KiB: a
#: query of a megabyte from one scoring API would block the others.
MAX_SUMMARY_BYTES: Final = 16 * 1024

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class ResolvedScorer:
    """A scorer that can run, beside what its spec says."""

    #: The agents' configuration, with the current interval, validity, timeout and retries.
    summary: ScorerSummary
    #: No ticks before this time (unix seconds).
    paused_until: float | None
    #: The ScoringAuthentications of its sources and its scoring API.
    authentications: tuple[ScoringAuthentication, ...] = ()

    @property
    def score_name(self) -> str:
        """The score's name as written by its scorer."""
        return self.summary.score_name


def resolve(
    scorer: DynamicScorer,
    token_hosts: TokenHosts = NO_HOSTS,
    authentications: Authentications = MappingProxyType({}),
    fill: Renderer | None = None,
) -> ResolvedScorer:
    """Resolve `scorer` on one cluster, whose values `fill` has; without it, templates have a stand-in.

    `token_hosts` are the servers that `/config` may name for a token, `authentications` all existing ones by
    `namespace/name`. Raises ResolutionError with a `ResolveReason` and a message that names the field.
    """
    spec, execution = scorer.spec, scorer.spec.execution
    synced = synced_config(scorer)
    context = Context(scorer, synced, token_hosts, authentications, fill or Renderer(None))
    score_name = _score_name(context)
    interval = _interval(context)
    sources = source_fields(context)
    source = sources[0][0]
    scoring = server(context, Stage("scoring", spec.scoring, synced.scoring, DEFAULT_SCORING_PATH))
    summary = ScorerSummary(
        name=scorer.metadata.name,
        score_name=score_name,
        scoring_endpoint=scoring.endpoint,
        scoring_interval=interval,
        scoring_endpoint_auth_name=scoring.auth_name,
        scoring_endpoint_auth_key=scoring.auth_key,
        location=spec.location,
        score_destination=spec.score_destination,
        score_dimension_format=spec.dimension_formats[0],
        aggregate_by=tuple(spec.aggregate.by) if spec.aggregate is not None else None,
        aggregate_with=spec.aggregate.how if spec.aggregate is not None else None,
        more_dimension_formats=spec.dimension_formats[1:] or None,
        timeout_seconds=execution.timeout_seconds,
        max_retries=execution.max_retries,
        validity_seconds=execution.validity_seconds or default_validity(interval),
        scoring_access=scoring.access,
        sources=tuple(other for other, _ in sources[1:]) or None,
        **source.as_first,
    )
    _check_size(summary)
    return ResolvedScorer(
        summary=summary,
        paused_until=_paused_until(scorer),
        authentications=tuple(used for used in (*(used for _, used in sources), scoring.authentication) if used),
    )


def synced_config(scorer: DynamicScorer) -> RemoteConfig:
    """The synced config in force; with mode None, an earlier one is ignored."""
    synced = scorer.status.last_synced_config
    in_force = synced is not None and scorer.spec.config_sync_mode is ConfigSyncMode.Full
    return synced if synced is not None and in_force else RemoteConfig()


def _score_name(context: Context) -> str:
    params = context.scorer.spec.scoring.params
    name = context.synced.scoring.params.name or (params.name if params else "")
    if not name.strip():
        raise context.missing(ResolveReason.MissingScoreName, "scoring.params.name")
    if _CONTROL_CHARACTER.search(name):
        raise ResolutionError(ResolveReason.InvalidScoreName, f"scoring.params.name {name!r} has a control character")
    return name


def _interval(context: Context) -> int:
    params = context.scorer.spec.scoring.params
    interval = first_positive(context.synced.scoring.params.interval, params.interval if params else 0)
    if not interval:
        raise context.missing(ResolveReason.MissingInterval, "scoring.params.interval")
    return interval


def _check_size(summary: ScorerSummary) -> None:
    size = len(dump_summaries([summary]))
    if size > MAX_SUMMARY_BYTES:
        names = (
            "source_query",
            "source_options",
            "score_name",
            "source_endpoint",
            "scoring_endpoint",
            "score_dimension_format",
        )
        name = max(("sources", *names), key=lambda name: len(str(getattr(summary, name) or "")))
        raise ResolutionError(
            ResolveReason.TooLarge,
            f"what agents are told of this scorer has {size} bytes, more than {MAX_SUMMARY_BYTES}; "
            f"most of it is {to_camel(name)}: make it shorter",
        )


def _paused_until(scorer: DynamicScorer) -> float | None:
    text = scorer.metadata.annotations.get(PAUSED_UNTIL_ANNOTATION, "")
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ResolutionError(
            ResolveReason.InvalidPausedUntil,
            f"annotation {PAUSED_UNTIL_ANNOTATION}: {text!r} is not a time such as 2026-11-21T10:00:00Z",
        )
    return pause_end(moment)
