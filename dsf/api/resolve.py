"""Resolves a DynamicScorer and its synced `/config` into the agents' configuration.

For each field, the synced value takes precedence with configSyncMode Full, then the spec, then a default; empty texts
and numbers below 1 are unset. Only the spec sets location, destination, dimension format and auth, because a scoring
API must not choose the destination of scores and tokens.

Templates, overrides and selectors make clusters differ. `resolve_for_clusters` returns the configuration of each
cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from pydantic.alias_generators import to_camel

from dsf.api.meta import limit_pause_end
from dsf.api.remoteconfig import RemoteConfig
from dsf.api.score import compute_default_validity
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import Authentications, ClusterFacts, ScoringAuthentication
from dsf.api.servers import ResolutionInput, Server, ServerDeclaration, resolve_server
from dsf.api.sourcefields import find_first_positive, resolve_sources
from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.api.templates import Renderer
from dsf.api.types import PAUSED_UNTIL_ANNOTATION, ConfigSyncMode, ResolveReason
from dsf.api.urls import NO_HOSTS, TokenHosts
from dsf.errors import ResolutionError

DEFAULT_SCORING_PATH: Final = "/scoring"
#: Maximum size in bytes of a scorer in the ConfigMap. All scorers of a cluster share the ConfigMap, of which OCM
#: delivers at most 500 KiB. Without a limit, a query of a megabyte from one scoring API would block the other scorers.
MAX_SUMMARY_BYTES: Final = 16 * 1024

#: Maximum characters of a score name. The limit bounds the items' total size, because an item of `whenEmpty` may repeat
#: the name 21 times, and there may be 256 items.
MAX_SCORE_NAME_CHARACTERS: Final = 1024

_CONTROL_CHARACTER_PATTERN = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class ResolvedScorer:
    """The resolved values of a scorer that can run."""

    #: The agents' configuration, with the current interval, validity, timeout and retries.
    summary: ScorerSummary
    #: Unix time until which PAUSED_UNTIL_ANNOTATION pauses the scorer; None without this annotation.
    paused_until: float | None
    #: The ScoringAuthentications of the scorer's sources and of its scoring API.
    authentications: tuple[ScoringAuthentication, ...] = ()

    @property
    def score_name(self) -> str:
        """The score's name as written by its scorer."""
        return self.summary.score_name


def resolve(
    scorer: DynamicScorer,
    token_hosts: TokenHosts = NO_HOSTS,
    authentications: Authentications = MappingProxyType({}),
    renderer: Renderer | None = None,
) -> ResolvedScorer:
    """Return the resolution of `scorer` on one cluster.

    `token_hosts` are the servers to which agents may send a token although `/config` names them instead of the spec.
    `authentications` are all ScoringAuthentications by `namespace/name`. `renderer` expands templates with the
    cluster's values. By default, there is no cluster, and the placeholder `x` replaces each template. Raises
    ResolutionError with a `ResolveReason` and a message that names the field.
    """
    spec, execution = scorer.spec, scorer.spec.execution
    synced_config = get_synced_config(scorer)
    context = ResolutionInput(scorer, synced_config, token_hosts, authentications, renderer or Renderer(None))
    score_name = _resolve_score_name(context)
    interval = _resolve_interval(context)
    sources = resolve_sources(context)
    source_summaries = [source_summary for source_summary, _ in sources]
    source_authentications = [authentication for _, authentication in sources]
    expression = spec.scoring.expression
    if error := spec.expression_error:
        raise ResolutionError(ResolveReason.ExpressionInvalid, error)
    scoring = (
        Server("")
        if expression is not None
        else resolve_server(
            context, ServerDeclaration("scoring", spec.scoring, synced_config.scoring, DEFAULT_SCORING_PATH)
        )
    )
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
        validity_seconds=execution.validity_seconds or compute_default_validity(interval),
        scoring_access=scoring.access,
        sources=tuple(source_summaries[1:]) or None,
        expression=expression,
        scores=spec.source.scores,
        **source_summaries[0].first_source_fields,
    )
    formula = summary.formula
    if formula is not None and "clusterLabels" in formula.variables:
        summary = summary.model_copy(update={"cluster_labels": context.renderer.get_labels()})
    _check_size(summary)
    return ResolvedScorer(
        summary=summary,
        paused_until=_parse_paused_until(scorer),
        authentications=tuple(
            authentication for authentication in (*source_authentications, scoring.authentication) if authentication
        ),
    )


def get_synced_config(scorer: DynamicScorer) -> RemoteConfig:
    """Return the synced config in effect. It is empty without one, and in mode None."""
    synced_config = scorer.status.last_synced_config
    if synced_config is None or scorer.spec.config_sync_mode is not ConfigSyncMode.Full:
        return RemoteConfig()
    return synced_config


def select_referenced(scorer: DynamicScorer, authentications: Authentications) -> Authentications:
    """Return the ScoringAuthentications that a scorer references, without those that do not exist."""
    if not authentications:
        return {}
    spec = scorer.spec
    methods = (spec.scoring.auth, *(source.auth for source in (spec.source, *(spec.sources or ()))))
    references = (auth.authentication_ref for auth in methods if auth is not None)
    keys = {f"{scorer.metadata.namespace}/{reference.name}" for reference in references if reference is not None}
    return {key: authentications[key] for key in sorted(keys) if key in authentications}


def _resolve_score_name(context: ResolutionInput) -> str:
    params = context.scorer.spec.scoring.params
    name = context.synced_config.scoring.params.name or (params.name if params else "")
    if not name.strip():
        raise context.make_missing_field_error(ResolveReason.MissingScoreName, "scoring.params.name")
    if len(name) > MAX_SCORE_NAME_CHARACTERS:
        raise ResolutionError(
            ResolveReason.TooLarge,
            f"scoring.params.name has {len(name)} characters, more than {MAX_SCORE_NAME_CHARACTERS}",
        )
    if _CONTROL_CHARACTER_PATTERN.search(name):
        raise ResolutionError(ResolveReason.InvalidScoreName, f"scoring.params.name {name!r} has a control character")
    return name


def _resolve_interval(context: ResolutionInput) -> int:
    params = context.scorer.spec.scoring.params
    interval = find_first_positive(context.synced_config.scoring.params.interval, params.interval if params else 0)
    if not interval:
        raise context.make_missing_field_error(ResolveReason.MissingInterval, "scoring.params.interval")
    return interval


def _check_size(summary: ScorerSummary) -> None:
    size = len(dump_summaries([summary]))
    if size > MAX_SUMMARY_BYTES:
        field_names = (
            "source_query",
            "source_options",
            "score_name",
            "source_endpoint",
            "scoring_endpoint",
            "score_dimension_format",
            "expression",
            "scores",
            "cluster_labels",
        )
        longest_field_name = max(
            ("sources", *field_names), key=lambda field_name: len(str(getattr(summary, field_name) or ""))
        )
        raise ResolutionError(
            ResolveReason.TooLarge,
            f"the configuration of this scorer for agents has {size} bytes, more than {MAX_SUMMARY_BYTES}; "
            f"most of it is {to_camel(longest_field_name)}: make it shorter",
        )


def _parse_paused_until(scorer: DynamicScorer) -> float | None:
    text = scorer.metadata.annotations.get(PAUSED_UNTIL_ANNOTATION, "")
    if not text:
        return None
    try:
        pause_end = datetime.fromisoformat(text)
    except ValueError:
        pause_end = None
    if pause_end is None or pause_end.tzinfo is None:
        raise ResolutionError(
            ResolveReason.InvalidPausedUntil,
            f"annotation {PAUSED_UNTIL_ANNOTATION}: {text!r} is not a time such as 2026-11-21T10:00:00Z",
        )
    return limit_pause_end(pause_end)


#: Result for one cluster: the resolution, the error if the scorer cannot run there, or None if the cluster is not
#: selected by `clusterSelector`.
_ClusterResult: TypeAlias = ResolvedScorer | ResolutionError | None
#: A cache of the clusters' configurations, because a resolution takes a third of a millisecond. It maps the key of a
#: scorer to (the inputs that all clusters share, cluster -> (facts about the cluster, the result)).
ResolutionCache: TypeAlias = dict[str, tuple[tuple[object, ...], dict[str, tuple[ClusterFacts, _ClusterResult]]]]


class FleetResolution(NamedTuple):
    """The configurations of a scorer on all clusters."""

    #: The configuration that all clusters have. If clusters may differ, the configuration of one of them.
    resolved_scorer: ResolvedScorer
    #: Cluster -> its summary, the error if the scorer cannot run there, or None if it is not selected. Empty if all
    #: clusters have the common configuration.
    variants: dict[str, ScorerSummary | ResolutionError | None]


def resolve_for_clusters(
    scorer: DynamicScorer,
    token_hosts: TokenHosts,
    authentications: Authentications,
    clusters: Iterable[ClusterFacts],
    cache: ResolutionCache,
) -> FleetResolution:
    """Return the configurations of a scorer on all clusters.

    Reads from and writes to `cache` if the configuration may differ between clusters.
    Raises ResolutionError if the scorer cannot run on any selected cluster.
    """
    placeholder_renderer = Renderer(None)
    placeholder_result = _try_to_resolve(scorer, token_hosts, authentications, placeholder_renderer)
    selector = scorer.spec.cluster_selector
    if not placeholder_renderer.depends_on_cluster and selector is None:
        return FleetResolution(_unwrap_or_raise(placeholder_result), {})
    # Include all inputs of `resolve`, but not the rest of the scorer's status, because it changes often.
    shared_inputs = (
        scorer.spec,
        scorer.status.last_synced_config,
        scorer.metadata.annotations,
        token_hosts,
        authentications,
    )
    cached_inputs, cached_results = cache.get(scorer.key, ((), {}))
    if cached_inputs != shared_inputs:
        cached_results = {}

    def resolve_on(cluster: ClusterFacts) -> _ClusterResult:
        if selector is not None and not selector.matches(cluster.labels):
            return None
        return (
            _try_to_resolve(scorer, token_hosts, authentications, Renderer(cluster))
            if placeholder_renderer.depends_on_cluster
            else placeholder_result
        )

    new_results: dict[str, tuple[ClusterFacts, _ClusterResult]] = {}
    for cluster in clusters:
        cached_facts, result = cached_results.get(cluster.name, (None, None))
        new_results[cluster.name] = cluster, result if cached_facts == cluster else resolve_on(cluster)
    cache[scorer.key] = shared_inputs, new_results
    results = {name: result for name, (_, result) in new_results.items()}
    resolutions = (result for result in results.values() if isinstance(result, ResolvedScorer))
    errors = (result for result in results.values() if isinstance(result, ResolutionError))
    representative = _unwrap_or_raise(next(resolutions, None) or next(errors, None) or placeholder_result)
    return FleetResolution(
        representative,
        {name: result.summary if isinstance(result, ResolvedScorer) else result for name, result in results.items()},
    )


def _try_to_resolve(
    scorer: DynamicScorer, token_hosts: TokenHosts, authentications: Authentications, renderer: Renderer
) -> ResolvedScorer | ResolutionError:
    try:
        return resolve(scorer, token_hosts, authentications, renderer)
    except ResolutionError as error:
        return error


def _unwrap_or_raise(result: ResolvedScorer | ResolutionError) -> ResolvedScorer:
    if isinstance(result, ResolutionError):
        raise result
    return result
