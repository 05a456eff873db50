"""A DynamicScorer and its synced `/config` made one: what an agent shall run, or why it cannot.

For each field the synced value wins with configSyncMode Full, then the spec, then a default; empty texts and numbers
below 1 are unset. Where scores go and who may see tokens (location, destination, dimension format, auth) is for the
spec alone: a scoring API must not choose it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from pydantic.alias_generators import to_camel

from dsf.api.authentication import Access, Auth
from dsf.api.dimension import DEFAULT_FORMAT
from dsf.api.naming import sanitize_resource_name
from dsf.api.promql import split_queries
from dsf.api.ratelimit import parse_rate
from dsf.api.remoteconfig import RemoteConfig, RemoteScoring, RemoteSource
from dsf.api.resolvereason import Reason
from dsf.api.scorer import DynamicScorer, Scoring, Source, WhenEmpty, WhenFailing
from dsf.api.scoringauthentication import ScoringAuthentication
from dsf.api.summary import ScorerSummary, default_validity, dump_summaries
from dsf.api.tokenhosts import NO_HOSTS, TokenHosts
from dsf.api.types import PAUSED_UNTIL_ANNOTATION, ConfigSyncMode, SourceType
from dsf.api.urls import base_url, join_url, origin
from dsf.api.ways import NO_WAY, Way, access_of, authentication_of, check_allowed
from dsf.errors import ResolutionError

DEFAULT_SCORING_PATH: Final = "/scoring"
#: The path of a Prometheus of which only the host is given.
DEFAULT_PROMETHEUS_PATH: Final = "/api/v1/query_range"
#: The path at which an OpenTelemetry collector serves Prometheus' format.
DEFAULT_OPENTELEMETRY_PATH: Final = "/metrics"
_DEFAULT_PATHS: Final = {
    SourceType.Prometheus: DEFAULT_PROMETHEUS_PATH,
    SourceType.OpenTelemetry: DEFAULT_OPENTELEMETRY_PATH,
}

#: Bytes of one scorer in the ConfigMap. All scorers of a cluster share it, and OCM brings no more than 500 KiB: a
#: scoring API that answers with a query of a megabyte would stop the others.
MAX_SUMMARY_BYTES: Final = 16 * 1024

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class ResolvedScorer:
    """A scorer that can run. Times are seconds."""

    #: What the agents are told; its interval, validity, timeout and retries are the ones in force.
    summary: ScorerSummary
    #: Name of its AddOnPlacementScore on each cluster.
    resource_name: str
    #: The single PromQL queries, in order; none unless the source is Prometheus.
    queries: tuple[str, ...]
    #: Most cycles a second in the whole fleet; None for no limit.
    rate_limit: float | None
    when_failing: WhenFailing
    when_empty: WhenEmpty
    #: No ticks at all, or none before this time.
    suspended: bool
    paused_until: datetime | None
    #: How its servers are asked, where ScoringAuthentications say it.
    source_way: Way = NO_WAY
    scoring_way: Way = NO_WAY

    @property
    def score_name(self) -> str:
        """The score's name as its scorer writes it."""
        return self.summary.score_name

    @property
    def interval_seconds(self) -> int:
        """Seconds between two cycles."""
        return self.summary.scoring_interval

    @property
    def validity_seconds(self) -> int:
        """Seconds a score lives without a newer one."""
        return self.summary.validity_seconds


class _Secret(NamedTuple):
    name: str
    key: str


class _SourceFields(NamedTuple):
    """What a summary says about the source; all empty where there is none."""

    type: SourceType
    endpoint: str = ""
    secret: _Secret = _Secret("", "")
    query: str = ""
    range: int = 0
    step: int = 0
    access: Access | None = None
    way: Way = NO_WAY


def resolve(
    scorer: DynamicScorer,
    token_hosts: TokenHosts = NO_HOSTS,
    authentications: Mapping[str, ScoringAuthentication] = MappingProxyType({}),
) -> ResolvedScorer:
    """What `scorer` comes to; `token_hosts` are the servers that `/config` may name for a token, `authentications` all
    that there are, by `namespace/name`.

    Raises ResolutionError with one of `Reason` and a message that names the field.
    """
    spec, execution = scorer.spec, scorer.spec.execution
    synced = _synced_config(scorer)
    elsewhere = _elsewhere(scorer)
    score_name = _score_name(spec.scoring, synced.scoring, elsewhere)
    interval = _interval(spec.scoring, synced.scoring, elsewhere)
    stage = _Stage("source", spec.config_url, spec.source, synced.source, token_hosts)
    source = _source(stage, scorer, authentications, elsewhere)
    stage = _Stage("scoring", spec.config_url, spec.scoring, synced.scoring, token_hosts)
    scoring_endpoint, scoring_way = _endpoint(stage, DEFAULT_SCORING_PATH, scorer, authentications)
    scoring_secret = _secret("scoring", spec.scoring.auth)
    scoring_access = access_of("scoring", spec.scoring, scoring_way, scoring_endpoint)
    summary = ScorerSummary(
        name=scorer.metadata.name,
        score_name=score_name,
        source_type=source.type.value,
        source_endpoint=source.endpoint,
        source_endpoint_auth_name=source.secret.name,
        source_endpoint_auth_key=source.secret.key,
        source_query=source.query,
        source_range=source.range,
        source_step=source.step,
        scoring_endpoint=scoring_endpoint,
        scoring_interval=interval,
        scoring_endpoint_auth_name=scoring_secret.name,
        scoring_endpoint_auth_key=scoring_secret.key,
        location=spec.location.value,
        score_destination=spec.score_destination.value,
        score_dimension_format=spec.score_dimension_format or DEFAULT_FORMAT,
        timeout_seconds=execution.timeout_seconds,
        max_retries=execution.max_retries,
        validity_seconds=execution.validity_seconds or default_validity(interval),
        source_access=source.access,
        scoring_access=scoring_access,
    )
    _check_size(summary)
    return ResolvedScorer(
        summary=summary,
        resource_name=sanitize_resource_name(score_name),
        queries=tuple(split_queries(source.query)) if source.type is SourceType.Prometheus else (),
        rate_limit=parse_rate(execution.rate_limit) if execution.rate_limit is not None else None,
        when_failing=execution.when_failing,
        when_empty=execution.when_empty,
        suspended=execution.suspend,
        paused_until=_paused_until(scorer),
        source_way=source.way,
        scoring_way=scoring_way,
    )


def _synced_config(scorer: DynamicScorer) -> RemoteConfig:
    """The synced config in force. One that was synced before the mode became None counts no more."""
    synced = scorer.status.last_synced_config
    in_force = synced is not None and scorer.spec.config_sync_mode is ConfigSyncMode.Full
    return synced if synced is not None and in_force else RemoteConfig()


def _elsewhere(scorer: DynamicScorer) -> str:
    """Why a value that is not in the spec does not come from `/config` either, as the end of a message."""
    if scorer.spec.config_sync_mode is ConfigSyncMode.None_:
        return "and configSyncMode None does not take it from /config"
    if scorer.status.last_synced_config is None:
        return "and /config was not read yet"
    return "neither in the spec nor in /config"


def _missing(reason: Reason, field: str, elsewhere: str) -> ResolutionError:
    return ResolutionError(reason, f"{field} is not set, {elsewhere}")


def _score_name(spec: Scoring, synced: RemoteScoring, elsewhere: str) -> str:
    name = synced.params.name or (spec.params.name if spec.params else "")
    if not name.strip():
        raise _missing(Reason.MissingScoreName, "scoring.params.name", elsewhere)
    if _CONTROL_CHARACTER.search(name):
        raise ResolutionError(Reason.InvalidScoreName, f"scoring.params.name {name!r} has a control character")
    return name


def _interval(spec: Scoring, synced: RemoteScoring, elsewhere: str) -> int:
    interval = _first_positive(synced.params.interval, spec.params.interval if spec.params else 0)
    if not interval:
        raise _missing(Reason.MissingInterval, "scoring.params.interval", elsewhere)
    return interval


class _Stage(NamedTuple):
    """What is said of one server, and by whom."""

    name: Literal["source", "scoring"]
    config_url: str
    spec: Source | Scoring
    synced: RemoteSource | RemoteScoring
    token_hosts: TokenHosts


def _source(
    stage: _Stage, scorer: DynamicScorer, authentications: Mapping[str, ScoringAuthentication], elsewhere: str
) -> _SourceFields:
    spec = scorer.spec.source
    synced = stage.synced if isinstance(stage.synced, RemoteSource) else RemoteSource()
    params = spec.params
    query = synced.params.query or (params.query if params else "")
    kind = synced.type or spec.type or (SourceType.Prometheus if query.strip() else SourceType.None_)
    if kind is SourceType.None_:
        # Nothing is fetched, so nothing is said about it and no token is looked for.
        return _SourceFields(kind)
    range_ = _first_positive(synced.params.range, params.range if params else 0)
    step = _first_positive(synced.params.step, params.step if params else 0)
    if kind is SourceType.Prometheus:
        if not split_queries(query):
            raise _missing(Reason.MissingQuery, "source.params.query", elsewhere)
        if not range_:
            raise _missing(Reason.MissingRange, "source.params.range", elsewhere)
        if not step:
            raise _missing(Reason.MissingStep, "source.params.step", elsewhere)
    if kind is SourceType.Kubernetes:
        # The agent's own cluster, with the agent's own account.
        return _SourceFields(kind, query=query, range=range_, step=step)
    default_path = _DEFAULT_PATHS.get(kind, "")
    endpoint, way = _endpoint(stage, default_path, scorer, authentications)
    secret = _secret("source", spec.auth)
    return _SourceFields(kind, endpoint, secret, query, range_, step, access_of("source", spec, way, endpoint), way)


def _first_positive(*values: int) -> int:
    return next((value for value in values if value > 0), 0)


def _endpoint(
    stage: _Stage,
    default_path: str,
    scorer: DynamicScorer,
    authentications: Mapping[str, ScoringAuthentication],
) -> tuple[str, Way]:
    """The URL of a stage. Raises ResolutionError when it is none, or when it would carry a token to a foreign host."""
    name, config_url, spec, synced, token_hosts = stage
    path = synced.path or spec.path or default_path
    try:
        fallback = base_url(config_url)
    except ValueError as error:
        raise ResolutionError(Reason.InvalidURL, f"spec.configURL: {error}") from None
    if synced.host:
        host, field = synced.host, f"{name}.host in /config"
    else:
        host, field = spec.host or fallback, f"spec.{name}.host"
    try:
        endpoint = join_url(host, path)
    except ValueError as error:
        raise ResolutionError(Reason.InvalidURL, f"{field}: {error}") from None
    authentication = authentication_of(name, spec, scorer, authentications)
    if authentication is not None:
        check_allowed(name, authentication, endpoint)
    elif synced.host and spec.auth is not None and not token_hosts.allow(synced.host):
        _check_token_host(name, synced.host, spec.host, fallback)
    return endpoint, Way(authentication, path)


def _check_token_host(stage: str, synced_host: str, spec_host: str, fallback: str) -> None:
    """Refuse a host from `/config` that the user did not name: a scoring API must not redirect a user's token."""
    try:
        named = {origin(url) for url in (spec_host, fallback) if url}
    except ValueError as error:
        raise ResolutionError(Reason.InvalidURL, f"spec.{stage}.host: {error}") from None
    if origin(synced_host) not in named:
        raise ResolutionError(
            Reason.TokenHostMismatch,
            f"spec.{stage}.auth: /config would send the token to {base_url(synced_host)}, which is neither "
            f"spec.{stage}.host nor the host of configURL; if it may have the token, set spec.{stage}.host to it, or "
            "have the hub's admin add it to DSF_TOKEN_HOSTS (the chart's hubSetting.tokenHosts)",
        )


def _secret(stage: str, auth: Auth | None) -> _Secret:
    """Upstream's kind of token, which agents of any version know."""
    if auth is None or auth.token_secret_ref is None:
        return _Secret("", "")
    ref = auth.token_secret_ref
    for field, value in (("name", ref.name), ("key", ref.key)):
        if not value:
            raise ResolutionError(Reason.InvalidTokenSecretRef, f"spec.{stage}.auth.tokenSecretRef.{field} is empty")
    return _Secret(ref.name, ref.key)


def _check_size(summary: ScorerSummary) -> None:
    size = len(dump_summaries([summary]))
    if size > MAX_SUMMARY_BYTES:
        names = ("source_query", "score_name", "source_endpoint", "scoring_endpoint", "score_dimension_format")
        name = max(names, key=lambda name: len(getattr(summary, name)))
        raise ResolutionError(
            Reason.TooLarge,
            f"what agents are told of this scorer has {size} bytes, more than {MAX_SUMMARY_BYTES}; "
            f"most of it is {to_camel(name)}: make it shorter",
        )


def _paused_until(scorer: DynamicScorer) -> datetime | None:
    text = scorer.metadata.annotations.get(PAUSED_UNTIL_ANNOTATION, "")
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ResolutionError(
            Reason.InvalidPausedUntil,
            f"annotation {PAUSED_UNTIL_ANNOTATION}: {text!r} is not a time such as 2026-11-21T10:00:00Z",
        )
    return moment
