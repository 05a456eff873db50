"""The agents' configuration of a scorer's sources, merged from spec and `/config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dsf.api.promql import split_queries
from dsf.api.remoteconfig import MAX_SOURCES, RemoteConfig, RemoteSource
from dsf.api.resolvereason import ResolveReason
from dsf.api.scorer import DynamicScorer, DynamicScorerSpec, SourceSpec
from dsf.api.scoringauthentication import Authentications
from dsf.api.servers import Stage, endpoint, secret, unused_endpoint
from dsf.api.sourcetype import is_plugin_type
from dsf.api.summary import SourceSummary
from dsf.api.tokenhosts import TokenHosts
from dsf.api.types import SourceMethod, SourceType
from dsf.api.ways import NO_WAY, Way, access_of
from dsf.errors import ResolutionError

#: Default path of a Prometheus.
DEFAULT_PROMETHEUS_PATH: Final = "/api/v1/query_range"
#: Default path of an OpenTelemetry collector with Prometheus' format.
DEFAULT_OPENTELEMETRY_PATH: Final = "/metrics"
_DEFAULT_PATHS: Final[Mapping[str, str]] = {
    SourceType.Prometheus: DEFAULT_PROMETHEUS_PATH,
    SourceType.OpenTelemetry: DEFAULT_OPENTELEMETRY_PATH,
}


class SourceFields(NamedTuple):
    """One source: the agents' configuration and authentication."""

    summary: SourceSummary
    way: Way = NO_WAY


class DeclaredSource(NamedTuple):
    """One source in spec and `/config`."""

    #: Path below spec.
    field: str
    name: str
    spec: SourceSpec
    synced: RemoteSource


def source_fields(
    scorer: DynamicScorer,
    synced: RemoteConfig,
    token_hosts: TokenHosts | None,
    authentications: Authentications,
    elsewhere: str,
) -> tuple[SourceFields, ...]:
    """All sources of a scorer in order; with only `source`, this one without a name.

    Raises ResolutionError.
    """
    fields = []
    everything = declared_sources(scorer.spec, synced)
    if len(everything) > MAX_SOURCES:
        raise ResolutionError(
            ResolveReason.InvalidSources,
            f"spec.sources and sources in /config have {len(everything)} names together, more than the {MAX_SOURCES} "
            f"that a scorer may have: {', '.join(settings.name for settings in everything)}",
        )
    for settings in everything:
        stage = Stage(settings.field, scorer.spec.config_url, settings.spec, settings.synced, token_hosts)
        fields.append(_source(settings, stage, scorer, authentications, elsewhere))
    return tuple(fields)


def declared_sources(spec: DynamicScorerSpec, synced: RemoteConfig) -> list[DeclaredSource]:
    """The settings of each source, by name; if only one of the two has several, the other's single source is the
    first.
    """
    if spec.sources is None and synced.sources is None:
        return [DeclaredSource("source", "", spec.source, synced.source)]
    first = (synced.sources or spec.sources or ())[0].name
    ours = {source.name: source for source in spec.sources} if spec.sources else {first: spec.source}
    theirs: dict[str, RemoteSource] = (
        {source.name: source for source in synced.sources} if synced.sources else {first: synced.source}
    )
    names = list(dict.fromkeys([*theirs, *ours]))
    return [
        DeclaredSource(f"sources[{name}]", name, ours.get(name, SourceSpec()), theirs.get(name, RemoteSource()))
        for name in names
    ]


def missing(reason: ResolveReason, field: str, elsewhere: str) -> ResolutionError:
    """Error for a missing value; `elsewhere` is why it does not come from `/config` either."""
    return ResolutionError(reason, f"{field} is not set, {elsewhere}")


def first_positive(*values: int) -> int:
    """The first positive value; 0 without one."""
    return next((value for value in values if value > 0), 0)


def _source(
    settings: DeclaredSource,
    stage: Stage,
    scorer: DynamicScorer,
    authentications: Authentications,
    elsewhere: str,
) -> SourceFields:
    spec, synced, params = settings.spec, settings.synced, settings.spec.params
    query = synced.params.query or (params.query if params else "") or ""
    kind = synced.type or spec.type or (SourceType.Prometheus if query.strip() else SourceType.None_)
    if spec.options and not is_plugin_type(kind):
        raise ResolutionError(
            ResolveReason.InvalidSources,
            f"spec.{settings.field}.options: the type is {kind}, and only the types of plug-ins have options",
        )
    if spec.method is not None and kind not in (SourceType.Prometheus, SourceType.None_):
        raise ResolutionError(
            ResolveReason.InvalidSources,
            f"spec.{settings.field}.method: the type in /config is {kind}, and only a Prometheus is asked by a method",
        )
    if kind is SourceType.None_:
        # Nothing is fetched, so its other settings and its token are ignored; upstream fills in the endpoint.
        return SourceFields(SourceSummary(name=settings.name, type=str(kind), endpoint=unused_endpoint(stage)))
    range_ = first_positive(synced.params.range, params.range if params else 0)
    step = first_positive(synced.params.step, params.step if params else 0)
    if kind is SourceType.Prometheus:
        if not split_queries(query):
            raise missing(ResolveReason.MissingQuery, f"{settings.field}.params.query", elsewhere)
        if not range_:
            raise missing(ResolveReason.MissingRange, f"{settings.field}.params.range", elsewhere)
        if not step:
            raise missing(ResolveReason.MissingStep, f"{settings.field}.params.step", elsewhere)
    if kind is SourceType.Object:
        if spec.object is None:
            raise ResolutionError(
                ResolveReason.MissingObject, f"{settings.field}.object is not set; /config cannot say it"
            )
        # An agent that does not know a part of it only fails this scorer, as with a query.
        query = spec.object.model_dump_json(by_alias=True, exclude_unset=True, exclude_none=True)
    summary = SourceSummary(
        name=settings.name,
        type=str(kind),
        # What an agent of another version does too is not written.
        method=spec.method if spec.method is SourceMethod.POST else None,
        query=query,
        range=range_,
        step=step,
        options=spec.options or None,
    )
    if kind in (SourceType.Kubernetes, SourceType.Object):
        # The agent's own cluster and account.
        return SourceFields(summary)
    url, way = endpoint(stage, _DEFAULT_PATHS.get(kind, ""), scorer, authentications)
    name, key = secret(settings.field, spec.auth)
    asked = {
        "endpoint": url,
        "endpoint_auth_name": name,
        "endpoint_auth_key": key,
        "access": access_of(settings.field, spec, way, url),
    }
    return SourceFields(summary.model_copy(update=asked), way)
