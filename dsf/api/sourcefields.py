"""The agents' configuration of a scorer's sources, merged from spec and `/config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dsf.api.promql import split_queries
from dsf.api.remoteconfig import MAX_SOURCES, RemoteConfig, RemoteSource
from dsf.api.scorer import DynamicScorerSpec, SourceSpec
from dsf.api.scoringauthentication import ScoringAuthentication
from dsf.api.servers import ResolutionInput, ServerDeclaration, choose_text, join_unused_endpoint, resolve_server
from dsf.api.summary import SourceSummary
from dsf.api.types import ResolveReason, SourceMethod, SourceType, is_plugin_type
from dsf.errors import ResolutionError

#: Default path of a Prometheus.
DEFAULT_PROMETHEUS_PATH: Final = "/api/v1/query_range"
#: Default path of a Prometheus for a query without a range, which only expressions have.
INSTANT_PATH: Final = "/api/v1/query"
#: Default path of an OpenTelemetry collector with Prometheus' format.
DEFAULT_OPENTELEMETRY_PATH: Final = "/metrics"
_DEFAULT_PATHS: Final[Mapping[str, str]] = {
    SourceType.Prometheus: DEFAULT_PROMETHEUS_PATH,
    SourceType.OpenTelemetry: DEFAULT_OPENTELEMETRY_PATH,
}


class DeclaredSource(NamedTuple):
    """A source in spec and `/config`."""

    #: Path below spec.
    field: str
    name: str
    spec: SourceSpec
    synced_source: RemoteSource


def resolve_sources(context: ResolutionInput) -> list[tuple[SourceSummary, ScoringAuthentication | None]]:
    """Return all sources of a scorer in order, for agents; a single `source` has no name.

    Raises ResolutionError.
    """
    declared_sources = list_declared_sources(context.scorer.spec, context.synced_config)
    if len(declared_sources) > MAX_SOURCES:
        raise ResolutionError(
            ResolveReason.InvalidSources,
            f"spec.sources and sources in /config have {len(declared_sources)} names together, more than the "
            f"{MAX_SOURCES} that a scorer may have: {', '.join(source.name for source in declared_sources)}",
        )
    return [_resolve_source(context, source) for source in declared_sources]


def list_declared_sources(spec: DynamicScorerSpec, synced_config: RemoteConfig) -> list[DeclaredSource]:
    """Return the declaration of each source by name.

    If only the spec or only `/config` has several sources, the single source of the other is the first source.
    """
    if spec.sources is None and synced_config.sources is None:
        return [DeclaredSource("source", "", spec.source, synced_config.source)]
    first_name = (synced_config.sources or spec.sources or ())[0].name
    spec_sources = {source.name: source for source in spec.sources} if spec.sources else {first_name: spec.source}
    synced_sources: dict[str, RemoteSource] = (
        {source.name: source for source in synced_config.sources}
        if synced_config.sources
        else {first_name: synced_config.source}
    )
    names = list(dict.fromkeys([*synced_sources, *spec_sources]))
    return [
        DeclaredSource(
            f"sources[{name}]", name, spec_sources.get(name, SourceSpec()), synced_sources.get(name, RemoteSource())
        )
        for name in names
    ]


def find_first_positive(*values: int) -> int:
    """Return the first positive value; 0 without a positive value."""
    return next((value for value in values if value > 0), 0)


def _resolve_source(
    context: ResolutionInput, declared_source: DeclaredSource
) -> tuple[SourceSummary, ScoringAuthentication | None]:
    spec, synced_source, params = declared_source.spec, declared_source.synced_source, declared_source.spec.params
    query_setting = choose_text(
        declared_source.field, "params.query", synced_source.params.query, (params.query if params else "") or ""
    )
    query = context.renderer.expand_query(*query_setting)
    kind = synced_source.type or spec.type or (SourceType.Prometheus if query.strip() else SourceType.None_)
    if spec.options and not is_plugin_type(kind):
        raise ResolutionError(
            ResolveReason.InvalidSources,
            f"spec.{declared_source.field}.options: the type is {kind}, and only the types of plug-ins have options",
        )
    if spec.method is not None and kind not in (SourceType.Prometheus, SourceType.None_):
        raise ResolutionError(
            ResolveReason.InvalidSources,
            f"spec.{declared_source.field}.method: the type in /config is {kind}, and only a Prometheus is asked by a "
            "method",
        )
    if kind is SourceType.Scores and spec.scores is None:
        raise ResolutionError(
            ResolveReason.InvalidSources,
            f"{declared_source.field}.type in /config is {kind}, which only a DynamicScorer with an expression has",
        )
    if kind is SourceType.None_:
        # Ignore other settings and the token, because the agent fetches nothing. Upstream also sets the endpoint.
        unused_endpoint = join_unused_endpoint(context, ServerDeclaration(declared_source.field, spec, synced_source))
        return SourceSummary(name=declared_source.name, type=str(kind), endpoint=unused_endpoint), None
    range_ = find_first_positive(synced_source.params.range, params.range if params else 0)
    step = find_first_positive(synced_source.params.step, params.step if params else 0)
    is_instant = context.scorer.spec.scoring.expression is not None and not range_ and not step
    if kind is SourceType.Prometheus:
        if not split_queries(query):
            raise context.make_missing_field_error(ResolveReason.MissingQuery, f"{declared_source.field}.params.query")
        if not range_ and not is_instant:
            raise context.make_missing_field_error(ResolveReason.MissingRange, f"{declared_source.field}.params.range")
        if not step and not is_instant:
            raise context.make_missing_field_error(ResolveReason.MissingStep, f"{declared_source.field}.params.step")
    if kind is SourceType.Object:
        if spec.object is None:
            raise ResolutionError(
                ResolveReason.MissingObject, f"{declared_source.field}.object is not set; /config cannot say it"
            )
        # Send the object as text, so that an agent that does not know a field fails only this scorer.
        query = spec.object.model_dump_json(by_alias=True, exclude_unset=True, exclude_none=True)
    summary = SourceSummary(
        name=declared_source.name,
        type=str(kind),
        # Omit the default GET, which agents of all versions use.
        method=spec.method if spec.method is SourceMethod.POST else None,
        query=query,
        range=range_,
        step=step,
        options=spec.options or None,
    )
    if kind in (SourceType.Kubernetes, SourceType.Object, SourceType.Scores):
        # These types use the agent's own cluster and account, without a server.
        return summary, None
    path = INSTANT_PATH if kind is SourceType.Prometheus and is_instant else _DEFAULT_PATHS.get(kind, "")
    source_server = resolve_server(context, ServerDeclaration(declared_source.field, spec, synced_source, path))
    update = {
        "endpoint": source_server.endpoint,
        "endpoint_auth_name": source_server.auth_name,
        "endpoint_auth_key": source_server.auth_key,
        "access": source_server.access,
    }
    return summary.model_copy(update=update), source_server.authentication
