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

from dsf.api.naming import sanitize_resource_name
from dsf.api.pauses import pause_end
from dsf.api.promql import split_queries
from dsf.api.ratelimit import parse_rate
from dsf.api.remoteconfig import RemoteConfig, RemoteScoring
from dsf.api.resolvereason import ResolveReason
from dsf.api.score import default_validity
from dsf.api.scorer import DynamicScorer, Scoring, WhenEmpty, WhenFailing
from dsf.api.scoringauthentication import Authentications
from dsf.api.servers import Stage, endpoint, secret
from dsf.api.sourcefields import first_positive, missing, source_fields
from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.api.tokenhosts import NO_HOSTS, TokenHosts
from dsf.api.types import PAUSED_UNTIL_ANNOTATION, ConfigSyncMode, SourceType
from dsf.api.ways import NO_WAY, Way, access_of
from dsf.errors import ResolutionError

DEFAULT_SCORING_PATH: Final = "/scoring"
#: Most bytes of one scorer in the ConfigMap. All scorers of a cluster share it, and OCM delivers at most 500 KiB: a
#: query of a megabyte from one scoring API would block the others.
MAX_SUMMARY_BYTES: Final = 16 * 1024

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class ResolvedScorer:
    """A scorer that can run. Times are in seconds."""

    #: The agents' configuration, with the current interval, validity, timeout and retries.
    summary: ScorerSummary
    #: Name of its AddOnPlacementScore on each cluster.
    resource_name: str
    #: The separate PromQL queries of the first source, in order; none unless it is a Prometheus.
    queries: tuple[str, ...]
    #: Most cycles per second in the whole fleet; None for no limit.
    rate_limit: float | None
    when_failing: WhenFailing
    when_empty: WhenEmpty
    #: No ticks at all, or none before this time (unix seconds).
    suspended: bool
    paused_until: float | None
    #: Authentication by ScoringAuthentications; sources in order.
    source_ways: tuple[Way, ...] = (NO_WAY,)
    scoring_way: Way = NO_WAY

    @property
    def score_name(self) -> str:
        """The score's name as written by its scorer."""
        return self.summary.score_name

    @property
    def interval_seconds(self) -> int:
        """Seconds between two cycles."""
        return self.summary.scoring_interval

    @property
    def validity_seconds(self) -> int:
        """Validity of a score in seconds."""
        return self.summary.validity_seconds


def resolve(
    scorer: DynamicScorer,
    token_hosts: TokenHosts | None = NO_HOSTS,
    authentications: Authentications = MappingProxyType({}),
) -> ResolvedScorer:
    """Resolve `scorer`; `token_hosts` are the servers that `/config` may name for a token, `authentications` all
    existing ones by `namespace/name`. None: servers are placeholders, and no list of allowed servers applies.

    Raises ResolutionError with a `ResolveReason` and a message that names the field.
    """
    spec, execution = scorer.spec, scorer.spec.execution
    synced = synced_config(scorer)
    elsewhere = _elsewhere(scorer)
    score_name = _score_name(spec.scoring, synced.scoring, elsewhere)
    interval = _interval(spec.scoring, synced.scoring, elsewhere)
    sources = source_fields(scorer, synced, token_hosts, authentications, elsewhere)
    source = sources[0].summary
    stage = Stage("scoring", spec.config_url, spec.scoring, synced.scoring, token_hosts)
    scoring_endpoint, scoring_way = endpoint(stage, DEFAULT_SCORING_PATH, scorer, authentications)
    scoring_secret = secret("scoring", spec.scoring.auth)
    scoring_access = access_of("scoring", spec.scoring, scoring_way, scoring_endpoint)
    summary = ScorerSummary(
        name=scorer.metadata.name,
        score_name=score_name,
        source_type=source.type,
        source_endpoint=source.endpoint,
        source_endpoint_auth_name=source.endpoint_auth_name,
        source_endpoint_auth_key=source.endpoint_auth_key,
        source_method=source.method,
        source_query=source.query,
        source_range=source.range,
        source_step=source.step,
        source_options=source.options,
        scoring_endpoint=scoring_endpoint,
        scoring_interval=interval,
        scoring_endpoint_auth_name=scoring_secret.name,
        scoring_endpoint_auth_key=scoring_secret.key,
        location=spec.location.value,
        score_destination=spec.score_destination.value,
        score_dimension_format=spec.dimension_formats[0],
        aggregate_by=tuple(spec.aggregate.by) if spec.aggregate is not None else None,
        aggregate_with=spec.aggregate.how.value if spec.aggregate is not None else None,
        more_dimension_formats=spec.dimension_formats[1:] or None,
        timeout_seconds=execution.timeout_seconds,
        max_retries=execution.max_retries,
        validity_seconds=execution.validity_seconds or default_validity(interval),
        source_access=source.access,
        scoring_access=scoring_access,
        source_name=source.name or None,
        sources=tuple(fields.summary for fields in sources[1:]) or None,
    )
    _check_size(summary)
    return ResolvedScorer(
        summary=summary,
        resource_name=sanitize_resource_name(score_name),
        queries=tuple(split_queries(source.query)) if source.type == SourceType.Prometheus else (),
        rate_limit=parse_rate(execution.rate_limit) if execution.rate_limit is not None else None,
        when_failing=execution.when_failing,
        when_empty=execution.when_empty,
        suspended=execution.suspend,
        paused_until=_paused_until(scorer),
        source_ways=tuple(fields.way for fields in sources),
        scoring_way=scoring_way,
    )


def synced_config(scorer: DynamicScorer) -> RemoteConfig:
    """The synced config in force; with mode None, an earlier one is ignored."""
    synced = scorer.status.last_synced_config
    in_force = synced is not None and scorer.spec.config_sync_mode is ConfigSyncMode.Full
    return synced if synced is not None and in_force else RemoteConfig()


def _elsewhere(scorer: DynamicScorer) -> str:
    """Why `/config` does not provide a value that is missing in the spec, as the end of a message."""
    if scorer.spec.config_sync_mode is ConfigSyncMode.None_:
        return "and configSyncMode None does not take it from /config"
    if scorer.status.last_synced_config is None:
        return "and /config was not read yet"
    return "neither in the spec nor in /config"


def _score_name(spec: Scoring, synced: RemoteScoring, elsewhere: str) -> str:
    name = synced.params.name or (spec.params.name if spec.params else "")
    if not name.strip():
        raise missing(ResolveReason.MissingScoreName, "scoring.params.name", elsewhere)
    if _CONTROL_CHARACTER.search(name):
        raise ResolutionError(ResolveReason.InvalidScoreName, f"scoring.params.name {name!r} has a control character")
    return name


def _interval(spec: Scoring, synced: RemoteScoring, elsewhere: str) -> int:
    interval = first_positive(synced.params.interval, spec.params.interval if spec.params else 0)
    if not interval:
        raise missing(ResolveReason.MissingInterval, "scoring.params.interval", elsewhere)
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
