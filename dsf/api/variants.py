"""Configuration of a scorer by cluster: templates, overrides, selectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from dsf.api.authentication import OneValue, ServerAccess
from dsf.api.remoteconfig import RemoteConfig, RemoteSource
from dsf.api.resolve import ResolvedScorer, resolve, synced_config
from dsf.api.scorer import DynamicScorer, DynamicScorerSpec, SourceSpec
from dsf.api.scoringauthentication import Authentications, ClusterFacts, Override, ScoringAuthentication
from dsf.api.summary import ScorerSummary
from dsf.api.templates import Renderer, has_template
from dsf.api.tokenhosts import TokenHosts
from dsf.api.types import ConfigSyncMode
from dsf.api.urls import join_url
from dsf.api.ways import Way, access_with, check_allowed
from dsf.errors import ResolutionError

_OneValue = TypeVar("_OneValue", bound=OneValue)


#: The configuration for a cluster, why the scorer cannot run there, or None if it is not selected.
Variant: TypeAlias = ScorerSummary | ResolutionError | None


class Everywhere(NamedTuple):
    """One scorer on all clusters."""

    #: The common configuration; its summary is that of one cluster.
    resolved: ResolvedScorer
    #: By cluster, if configurations differ.
    variants: dict[str, Variant]


class _Anything(dict[str, str]):
    """Labels of a cluster with every label."""

    def get(self, key: str, default: Any = None) -> Any:
        del key, default
        return "x"


_NOWHERE = ClusterFacts("x", _Anything(), _Anything())


#: The clusters' configurations as worked out last, so that only changes are worked out again: a template takes a third
#: of a millisecond per cluster. By scorer: its inputs, and by cluster the facts and the result.
Memory: TypeAlias = dict[str, tuple[tuple[object, ...], dict[str, tuple[ClusterFacts, Variant]]]]


def resolve_everywhere(
    scorer: DynamicScorer,
    token_hosts: TokenHosts,
    authentications: Authentications,
    clusters: Iterable[ClusterFacts],
    memory: Memory,
) -> Everywhere:
    """The clusters' configurations, also kept in `memory`. Raises ResolutionError if it cannot run on any selected
    cluster."""
    has_templates = any(has_template(text) for text in _texts(scorer))
    resolved = None if has_templates else resolve(scorer, token_hosts, authentications)
    selector = scorer.spec.cluster_selector
    if resolved is not None and selector is None and not _is_varied(resolved):
        return Everywhere(resolved, {})
    # All inputs of `resolve`; a written status is no change.
    inputs = (scorer.spec, scorer.status.last_synced_config, scorer.metadata.annotations, token_hosts, authentications)
    before_inputs, before = memory.get(scorer.key, ((), {}))
    if before_inputs != inputs:
        before = {}
    now: dict[str, tuple[ClusterFacts, Variant]] = {}
    for cluster in clusters:
        known = before.get(cluster.name)
        # The whole result is only needed for the first cluster on which it runs.
        if known is None or known[0] != cluster or (resolved is None and isinstance(known[1], ScorerSummary)):
            variant: Variant = None
            if selector is None or selector.matches(cluster.labels):
                try:
                    own = resolved
                    if has_templates or own is None:
                        own = resolve(_rendered(scorer, cluster), token_hosts, authentications)
                    variant = _on_cluster(own, cluster)
                    resolved = resolved or own
                except ResolutionError as error:
                    variant = error
            known = (cluster, variant)
        now[cluster.name] = known
    memory[scorer.key] = inputs, now
    variants = {name: variant for name, (_, variant) in now.items()}
    refusal = next((variant for variant in variants.values() if isinstance(variant, ResolutionError)), None)
    if resolved is None:
        if refusal is not None:
            raise refusal
        # No list of servers contains the placeholder.
        resolved = resolve(_rendered(scorer, _NOWHERE), None, authentications)
    return Everywhere(resolved, variants)


def _texts(scorer: DynamicScorer) -> list[str]:
    """Texts that may have templates which are expanded before a scorer is resolved."""
    spec, synced = scorer.spec, synced_config(scorer)
    texts = [spec.scoring.host, spec.scoring.path, synced.scoring.host, synced.scoring.path]
    sources: list[SourceSpec | RemoteSource] = [
        spec.source,
        synced.source,
        *(spec.sources or ()),
        *(synced.sources or ()),
    ]
    for source in sources:
        texts += [source.host, source.path, (source.params.query if source.params else "") or ""]
    return texts


def _rendered(scorer: DynamicScorer, cluster: ClusterFacts) -> DynamicScorer:
    """The scorer with templates expanded for a cluster."""
    fill = Renderer(cluster)
    spec, synced = scorer.spec, scorer.status.last_synced_config
    made = scorer.model_copy(update={"spec": spec.model_copy(update=_filled_parts(spec, fill, "spec.{}"))})
    # A /config that was synced before the mode became None is ignored with its templates.
    if synced is None or spec.config_sync_mode is not ConfigSyncMode.Full:
        return made
    config = synced.model_copy(update=_filled_parts(synced, fill, "{} in /config"))
    return made.model_copy(update={"status": scorer.status.model_copy(update={"last_synced_config": config})})


def _filled_parts(settings: DynamicScorerSpec | RemoteConfig, fill: Renderer, where: str) -> dict[str, Any]:
    """The expanded parts by field name; `where` converts a field name to its path."""
    sources = None
    if settings.sources is not None:
        sources = tuple(_with_query(source, fill, f"sources[{source.name}]", where) for source in settings.sources)
    return {
        "source": _with_query(settings.source, fill, "source", where),
        "sources": sources,
        "scoring": _with_urls(settings.scoring, fill, "scoring", where),
    }


def _with_query(source: Any, fill: Renderer, field: str, where: str) -> Any:
    source = _with_urls(source, fill, field, where)
    if source.params is None or source.params.query is None:
        return source
    query = fill.query(source.params.query, where.format(f"{field}.params.query"))
    return source.model_copy(update={"params": source.params.model_copy(update={"query": query})})


def _with_urls(part: Any, fill: Renderer, field: str, where: str) -> Any:
    host, path = (
        fill.host(part.host, where.format(f"{field}.host")),
        fill.path(part.path, where.format(f"{field}.path")),
    )
    return part.model_copy(update={"host": host, "path": path})


def _is_varied(resolved: ResolvedScorer) -> bool:
    """Whether clusters get different configurations of a scorer without templates in query and URLs."""
    ways = [way.authentication for way in (*resolved.source_ways, resolved.scoring_way)]
    if any(authentication is not None and authentication.spec.overrides for authentication in ways):
        return True
    return any(has_template(value) for access in resolved.summary.accesses for value in _values(access))


def _values(access: ServerAccess) -> list[str]:
    pairs = (*access.methods.headers, *access.methods.query_parameters)
    return [pair.value for pair in pairs if pair.value is not None]


def _on_cluster(resolved: ResolvedScorer, cluster: ClusterFacts) -> ScorerSummary:
    summary, fill = resolved.summary, Renderer(cluster)
    name = "source" if summary.source_name is None else f"sources[{summary.source_name}]"
    first, *others = resolved.source_ways
    source = _server_on(name, first, summary.source_endpoint, summary.source_access, cluster, fill)
    scoring = _server_on(
        "scoring", resolved.scoring_way, summary.scoring_endpoint, summary.scoring_access, cluster, fill
    )
    update: dict[str, Any] = {"source_endpoint": source[0], "source_access": source[1]}
    update |= {"scoring_endpoint": scoring[0], "scoring_access": scoring[1]}
    if summary.sources is not None:
        sources = []
        for source_summary, way in zip(summary.sources, others, strict=True):
            endpoint, access = _server_on(
                f"sources[{source_summary.name}]", way, source_summary.endpoint, source_summary.access, cluster, fill
            )
            sources.append(source_summary.model_copy(update={"endpoint": endpoint, "access": access}))
        update["sources"] = tuple(sources)
    return summary.model_copy(update=update)


def _server_on(
    stage: str, way: Way, endpoint: str, access: ServerAccess | None, cluster: ClusterFacts, fill: Renderer
) -> tuple[str, ServerAccess | None]:
    """URL of one server on a cluster, and authentication to it."""
    override = way.authentication.spec.on(cluster) if way.authentication is not None else None
    if way.authentication is not None and override is not None:
        endpoint, access = _overridden(stage, way, way.authentication, override, endpoint, fill)
    return endpoint, None if access is None else _filled(access, fill, stage)


def _overridden(
    stage: str, way: Way, authentication: ScoringAuthentication, override: Override, endpoint: str, fill: Renderer
) -> tuple[str, ServerAccess]:
    name = authentication.metadata.name
    if override.host is not None:
        endpoint = join_url(fill.host(override.host, f"an override of ScoringAuthentication {name!r}"), way.path)
        check_allowed(stage, authentication, endpoint)
    methods = override if override.is_any else authentication.spec
    where = f"an override of ScoringAuthentication {name!r}"
    return endpoint, access_with(authentication, methods, override.tls or authentication.spec.tls, where)


def _filled(access: ServerAccess, fill: Renderer, stage: str) -> ServerAccess:
    def filled(pairs: tuple[_OneValue, ...], field: str) -> tuple[_OneValue, ...]:
        return tuple(
            pair
            if pair.value is None
            else pair.model_copy(update={"value": fill.value(pair.value, f"{field}[{index}].value of the {stage}")})
            for index, pair in enumerate(pairs)
        )

    if not any(has_template(value) for value in _values(access)):
        return access
    methods = access.methods
    update = {
        "headers": filled(methods.headers, "headers"),
        "query_parameters": filled(methods.query_parameters, "queryParameters"),
    }
    return access.model_copy(update={"methods": methods.model_copy(update=update)})
