"""Configuration of a scorer by cluster: templates, overrides, selectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from dsf.api.resolve import ResolvedScorer, resolve
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import Authentications, ClusterFacts
from dsf.api.summary import ScorerSummary
from dsf.api.templates import Renderer
from dsf.api.tokenhosts import TokenHosts
from dsf.errors import ResolutionError

#: The resolution of a scorer on a cluster, why it cannot run there, or None if the cluster is not selected.
_Own: TypeAlias = ResolvedScorer | ResolutionError | None
#: The clusters' configurations as worked out last, so that only changes are worked out again: one takes a third of a
#: millisecond. By scorer: its inputs, and by cluster the facts and the result.
Memory: TypeAlias = dict[str, tuple[tuple[object, ...], dict[str, tuple[ClusterFacts, _Own]]]]


class Everywhere(NamedTuple):
    """A scorer on all clusters."""

    #: The common configuration; its summary is that of one cluster.
    resolved: ResolvedScorer
    #: By cluster, if configurations differ: that of the cluster, why it cannot run there, or None if not selected.
    variants: dict[str, ScorerSummary | ResolutionError | None]


def resolve_everywhere(
    scorer: DynamicScorer,
    token_hosts: TokenHosts,
    authentications: Authentications,
    clusters: Iterable[ClusterFacts],
    memory: Memory,
) -> Everywhere:
    """The clusters' configurations, also kept in `memory`. Raises ResolutionError if it cannot run on any selected
    cluster."""
    anywhere = Renderer(None)
    common = _tried(scorer, token_hosts, authentications, anywhere)
    selector = scorer.spec.cluster_selector
    if not anywhere.is_used and selector is None:
        return Everywhere(_checked(common), {})
    # All inputs of `resolve`; a written status is no change.
    inputs = (scorer.spec, scorer.status.last_synced_config, scorer.metadata.annotations, token_hosts, authentications)
    before_inputs, before = memory.get(scorer.key, ((), {}))
    if before_inputs != inputs:
        before = {}

    def variant(cluster: ClusterFacts) -> _Own:
        if selector is not None and not selector.matches(cluster.labels):
            return None
        return _tried(scorer, token_hosts, authentications, Renderer(cluster)) if anywhere.is_used else common

    now: dict[str, tuple[ClusterFacts, _Own]] = {}
    for cluster in clusters:
        facts, own = before.get(cluster.name, (None, None))
        now[cluster.name] = cluster, own if facts == cluster else variant(cluster)
    memory[scorer.key] = inputs, now
    found = {name: own for name, (_, own) in now.items()}
    usable = (own for own in found.values() if isinstance(own, ResolvedScorer))
    refused = (own for own in found.values() if isinstance(own, ResolutionError))
    resolved = _checked(next(usable, None) or next(refused, None) or common)
    return Everywhere(
        resolved, {name: own.summary if isinstance(own, ResolvedScorer) else own for name, own in found.items()}
    )


def _tried(
    scorer: DynamicScorer, token_hosts: TokenHosts, authentications: Authentications, fill: Renderer
) -> ResolvedScorer | ResolutionError:
    try:
        return resolve(scorer, token_hosts, authentications, fill)
    except ResolutionError as error:
        return error


def _checked(result: ResolvedScorer | ResolutionError) -> ResolvedScorer:
    if isinstance(result, ResolutionError):
        raise result
    return result
