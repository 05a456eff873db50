"""What is told of a scorer on each cluster, where that is not the same on all: templates, overrides, selectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from dsf.api.authentication import Access, OneValue
from dsf.api.remoteconfig import RemoteConfig
from dsf.api.resolve import ResolvedScorer, resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import ClusterFacts, Override, ScoringAuthentication
from dsf.api.summary import ScorerSummary
from dsf.api.templates import Renderer, has_template
from dsf.api.tokenhosts import TokenHosts
from dsf.api.urls import join_url
from dsf.api.ways import Way, access_with, check_allowed
from dsf.errors import ResolutionError

_OneValue = TypeVar("_OneValue", bound=OneValue)


class Everywhere(NamedTuple):
    """One scorer on all clusters."""

    #: What is the same on all of them; its summary is that of one of them.
    resolved: ResolvedScorer
    #: By cluster, where not all are told the same: what is told, why it cannot run there, or None where it shall not.
    told: dict[str, ScorerSummary | ResolutionError | None]


class _Anything(dict[str, str]):
    """Labels of a cluster that has every one."""

    def get(self, key: str, default: Any = None) -> Any:
        del key, default
        return "x"


_NOWHERE = ClusterFacts("x", _Anything(), _Anything())


def resolve_everywhere(
    scorer: DynamicScorer,
    token_hosts: TokenHosts,
    authentications: Mapping[str, ScoringAuthentication],
    clusters: Iterable[ClusterFacts],
) -> Everywhere:
    """What the clusters are told. Raises ResolutionError when it can run on none of those that it shall run on."""
    has_templates = any(has_template(text) for text in _texts(scorer))
    resolved = None if has_templates else resolve(scorer, token_hosts, authentications)
    selector = scorer.spec.cluster_selector
    if resolved is not None and selector is None and not _is_varied(resolved):
        return Everywhere(resolved, {})
    told: dict[str, ScorerSummary | ResolutionError | None] = {}
    refusal: ResolutionError | None = None
    for cluster in clusters:
        told[cluster.name] = None
        if selector is not None and not selector.matches(cluster.labels):
            continue
        try:
            own = resolve(_rendered(scorer, cluster), token_hosts, authentications) if has_templates else resolved
            if own is None:
                continue
            told[cluster.name] = _on_cluster(own, cluster)
            resolved = resolved or own
        except ResolutionError as error:
            told[cluster.name] = error
            refusal = refusal or error
    if resolved is None:
        if refusal is not None:
            raise refusal
        resolved = resolve(_rendered(scorer, _NOWHERE), token_hosts, authentications)
    return Everywhere(resolved, told)


def _texts(scorer: DynamicScorer) -> list[str]:
    """What may have templates that are filled in before a scorer is resolved."""
    spec, synced = scorer.spec, scorer.status.last_synced_config or RemoteConfig()
    texts = [spec.source.host, spec.source.path, spec.source.params.query if spec.source.params else ""]
    texts += [spec.scoring.host, spec.scoring.path, synced.scoring.host, synced.scoring.path]
    return [*texts, synced.source.host, synced.source.path, synced.source.params.query]


def _rendered(scorer: DynamicScorer, cluster: ClusterFacts) -> DynamicScorer:
    """The scorer with the values of a cluster in it."""
    fill = Renderer(cluster)
    spec, synced = scorer.spec, scorer.status.last_synced_config
    source = _with_urls(spec.source, fill, "spec.source")
    if (params := source.params) is not None:
        query = fill.query(params.query, "spec.source.params.query")
        source = source.model_copy(update={"params": params.model_copy(update={"query": query})})
    scoring = _with_urls(spec.scoring, fill, "spec.scoring")
    made = scorer.model_copy(update={"spec": spec.model_copy(update={"source": source, "scoring": scoring})})
    if synced is None:
        return made
    remote = _with_urls(synced.source, fill, "source in /config")
    query = fill.query(remote.params.query, "source.params.query in /config")
    remote = remote.model_copy(update={"params": remote.params.model_copy(update={"query": query})})
    api = _with_urls(synced.scoring, fill, "scoring in /config")
    config = synced.model_copy(update={"source": remote, "scoring": api})
    return made.model_copy(update={"status": scorer.status.model_copy(update={"last_synced_config": config})})


def _with_urls(part: Any, fill: Renderer, field: str) -> Any:
    host, path = fill.host(part.host, f"{field}.host"), fill.path(part.path, f"{field}.path")
    return part.model_copy(update={"host": host, "path": path})


def _is_varied(resolved: ResolvedScorer) -> bool:
    """Whether clusters are told different things of a scorer without templates in query and URLs."""
    ways = (resolved.source_way.authentication, resolved.scoring_way.authentication)
    if any(authentication is not None and authentication.spec.overrides for authentication in ways):
        return True
    accesses = (resolved.summary.source_access, resolved.summary.scoring_access)
    return any(has_template(value) for access in accesses if access is not None for value in _values(access))


def _values(access: Access) -> list[str]:
    pairs = (*access.methods.headers, *access.methods.query_parameters)
    return [pair.value for pair in pairs if pair.value is not None]


def _on_cluster(resolved: ResolvedScorer, cluster: ClusterFacts) -> ScorerSummary:
    fill = Renderer(cluster)
    update: dict[str, Any] = {}
    for stage, way in (("source", resolved.source_way), ("scoring", resolved.scoring_way)):
        endpoint: str = getattr(resolved.summary, f"{stage}_endpoint")
        access: Access | None = getattr(resolved.summary, f"{stage}_access")
        override = way.authentication.spec.on(cluster) if way.authentication is not None else None
        if way.authentication is not None and override is not None:
            endpoint, access = _overridden(stage, way, way.authentication, override, endpoint, fill)
        if access is not None:
            access = _filled(access, fill, stage)
        update |= {f"{stage}_endpoint": endpoint, f"{stage}_access": access}
    return resolved.summary.model_copy(update=update)


def _overridden(
    stage: str, way: Way, authentication: ScoringAuthentication, override: Override, endpoint: str, fill: Renderer
) -> tuple[str, Access]:
    name = authentication.metadata.name
    if override.host is not None:
        endpoint = join_url(fill.host(override.host, f"an override of ScoringAuthentication {name!r}"), way.path)
        check_allowed(stage, authentication, endpoint)
    methods = override if override.is_any else authentication.spec
    where = f"an override of ScoringAuthentication {name!r}"
    return endpoint, access_with(authentication, methods, override.tls or authentication.spec.tls, where)


def _filled(access: Access, fill: Renderer, stage: str) -> Access:
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
