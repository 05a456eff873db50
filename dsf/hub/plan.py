"""Computes the desired state: accepted clusters x runnable scorers, minus masks. Pure functions, no I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from dsf.api.cluster import ManagedCluster
from dsf.api.nameclaims import NameClaims
from dsf.api.naming import sanitize_resource_name
from dsf.api.resolve import ResolutionCache, ResolvedScorer, resolve_for_clusters, select_referenced
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import Authentications, ClusterFacts, ScoringAuthentication
from dsf.api.scoringconfig import ANY, DynamicScoringConfig, Mask
from dsf.api.summary import ScorerSummary
from dsf.api.types import CONFIG_NAME, ResolveReason
from dsf.api.urls import NO_HOSTS, TokenHosts
from dsf.errors import ResolutionError
from dsf.hub import manifestwork, secretdelivery
from dsf.hub.admission import NO_RULES, NameRules, decide_names, find_server_refusal, is_owner, list_servers
from dsf.hub.composites import find_input_obstacles
from dsf.hub.manifestwork import make_part
from dsf.hub.scorerplan import (
    CONFIG_MISPLACED,
    INVALID,
    Exclusion,
    Obstacle,
    PlanCache,
    ScorerPlan,
    make_internal_obstacle,
)
from dsf.hub.secretdelivery import NO_DELIVERY, DeliverableSecrets, SecretCopy
from dsf.store.entries import Entry
from dsf.store.notices import ClusterNotice, select_grouping_labels, truncate
from dsf.store.registry import ScorerRecord

#: Maximum number of scorers of a namespace in the notice about a cluster, and maximum characters of each reason. Each
#: cluster has a notice, and a namespace may have thousands of scorers.
_MAX_ABSENCES: Final = 50
_MAX_ABSENCE_CHARACTERS: Final = 300


def _expand_masks(masks: Iterable[Mask], clusters: Iterable[ClusterFacts]) -> Iterator[tuple[str, str]]:
    """Yield (cluster name, score name) of each mask; a mask with a selector yields one for each selected cluster."""
    for mask in masks:
        if mask.cluster_selector is None:
            yield mask.cluster_name or "", mask.score_name
            continue
        for cluster in clusters:
            if mask.cluster_selector.matches(cluster.labels):
                yield cluster.name, mask.score_name


@dataclass(frozen=True)
class MaskIndex:
    """An index of masks. It makes the lookup fast, which each plan does for each pair of cluster and scorer."""

    #: (cluster name, score name), each of which may be `*`.
    masks: frozenset[tuple[str, str]] = frozenset()

    @cached_property
    def _scores(self) -> Mapping[str, frozenset[str]]:
        """Cluster name, or `*`, -> score names of its masks."""
        scores: dict[str, set[str]] = {}
        for cluster, score_name in self.masks:
            scores.setdefault(cluster, set()).add(score_name)
        return {cluster: frozenset(score_names) for cluster, score_names in scores.items()}

    def get_scores(self, cluster: str) -> frozenset[str]:
        """Return the score names of the masks that name this cluster, which may include `*`."""
        return self._scores.get(cluster, frozenset())

    def hides(self, cluster: str, score_name: str) -> bool:
        """Return True if a mask matches this pair. `score_name` is not sanitized; `*` in a mask matches any name."""
        return bool(self.masks and self.describe_mask(cluster, score_name))

    def describe_mask(self, cluster: str, score_name: str) -> str:
        """Return a description of the mask that hides this pair; empty if no mask does."""
        for mask, text in (
            ((cluster, score_name), "masked on this cluster"),
            ((ANY, score_name), "masked on all clusters"),
            ((cluster, ANY), "this cluster is masked from all scores"),
            ((ANY, ANY), "all scores are masked on all clusters"),
        ):
            if mask in self.masks:
                return text
        return ""


@dataclass(frozen=True)
class FleetPlan:
    """The complete desired state."""

    #: `namespace/name` -> plan of the DynamicScorer.
    scorers: Mapping[str, ScorerPlan] = field(default_factory=dict)
    #: Name -> uid of the clusters on which scorers may run.
    clusters: Mapping[str, str] = field(default_factory=dict)
    masks: MaskIndex = field(default_factory=MaskIndex)
    #: True if a readable configuration exists; otherwise no scorer runs or is distributed.
    is_enabled: bool = False
    #: True if no configuration exists, not even an unreadable one; then no score is published.
    has_no_config: bool = True
    #: Number of accepted clusters that are not in `clusters`, because they have no agent yet.
    without_addon: int = 0
    #: Labels of `clusters` that are shown to users.
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Parse errors of unreadable DynamicScorers, by key.
    unreadable: Mapping[str, str] = field(default_factory=dict)
    #: Keys of deleted DynamicScorers that finalizers keep.
    terminating: frozenset[str] = frozenset()
    #: Maximum bytes of a ManifestWork.
    limit: int = manifestwork.MAX_BYTES
    #: All claims on names, which are stored before this plan takes effect.
    claims: NameClaims = field(default_factory=NameClaims)
    #: The hub's own namespace.
    home: str = ""
    #: Results of `list_running_scorers` by cluster, and by the result of `identify_running_scorers`.
    _running_scorers: dict[str, list[ScorerPlan]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _running_scorers_by_key: dict[object, list[ScorerPlan]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def _runnable_scorers(self) -> list[ScorerPlan]:
        """Scorers that may run on some cluster, sorted by name."""
        runnable_scorers = [
            plan
            for plan in self.scorers.values()
            if self.is_enabled
            and plan.runnable is not None
            and not (plan.is_excluded and len(plan.variants) >= len(self.clusters))
        ]
        return sorted(runnable_scorers, key=lambda plan: plan.name)

    def runs_on(self, plan: ScorerPlan, cluster: str) -> bool:
        """Return True if a scorer runs on this one of `clusters`, provided that a configuration exists."""
        resolved_scorer = plan.runnable
        return (
            resolved_scorer is not None
            and not self.masks.hides(cluster, resolved_scorer.score_name)
            and plan.get_summary(cluster) is not None
        )

    def list_running_scorers(self, cluster: str) -> list[ScorerPlan]:
        """Return the scorers that run on a cluster, sorted by name. Clusters share the list; do not change it."""
        if cluster not in self.clusters:
            return []
        if cluster not in self._running_scorers:
            key = self.identify_running_scorers(cluster)
            if key not in self._running_scorers_by_key:
                running_scorers = [plan for plan in self._runnable_scorers if self.runs_on(plan, cluster)]
                self._running_scorers_by_key[key] = running_scorers
            self._running_scorers[cluster] = self._running_scorers_by_key[key]
        return self._running_scorers[cluster]

    def identify_running_scorers(self, cluster: str) -> object:
        """Return a key that is equal for clusters on which the same scorers run with equal parts and Secrets.

        Most clusters run the same scorers, so the work for thousands of scorers is done once for all these clusters.
        """
        return self.masks.get_scores(cluster), tuple(self._variations.get(cluster, ()))

    @cached_property
    def _variations(self) -> Mapping[str, list[object]]:
        """Cluster -> how runnable scorers differ there from those on most clusters, except for masks."""
        variations: dict[str, list[object]] = {}
        for plan in self._runnable_scorers:
            key = plan.scorer.key
            for cluster, variant in plan.variants.items():
                part = plan.get_part(cluster) if isinstance(variant, ScorerSummary) else None
                variations.setdefault(cluster, []).append((key, id(part)))
            for cluster, copies in plan.secrets.items() if len(plan.secrets) > 1 else ():
                variations.setdefault(cluster, []).append((key, *sorted(copies.items())))
        return variations

    def make_notice(self, cluster: str) -> ClusterNotice:
        """Return the notice for users about a cluster."""
        absence_reasons: dict[str, str] = {}
        namespace_counts: Counter[str] = Counter()
        for plan in self._plans_of_absences:
            if namespace_counts[plan.namespace] >= _MAX_ABSENCES:
                continue
            reason = self._describe_absence(plan, cluster)
            if reason:
                absence_reasons[plan.name] = truncate(reason, _MAX_ABSENCE_CHARACTERS)
                namespace_counts[plan.namespace] += 1
        return ClusterNotice(name=cluster, labels=dict(self.labels.get(cluster, {})), absent=absence_reasons)

    @cached_property
    def _plans_of_absences(self) -> list[ScorerPlan]:
        """The plans of scorers that may be absent from some clusters, sorted by key."""
        return [
            plan
            for _, plan in sorted(self.scorers.items())
            if plan.resolved_scorer is not None and not plan.has_no_name and (plan.variants or self.masks.masks)
        ]

    def _describe_absence(self, plan: ScorerPlan, cluster: str) -> str:
        """Return why a resolved scorer does not run on a cluster; empty if it runs there, or runs nowhere."""
        score_name = plan.resolved_scorer.score_name if plan.resolved_scorer is not None else ""
        if mask_text := self.masks.describe_mask(cluster, score_name):
            return f"{mask_text} by the DynamicScoringConfig"
        if cluster not in plan.variants or isinstance(variant := plan.variants[cluster], ScorerSummary):
            return ""
        return f"{variant.reason}: {variant.message}" if variant else "its spec.clusterSelector does not select it"

    def make_entries(self, cluster: str, current_entries: Mapping[str, Entry]) -> dict[str, Entry]:
        """Return the desired entries of a cluster by scorer; `current_entries` are those in the schedule now.

        A scorer that currently cannot run (its API is down, its manifest is invalid or unreadable, or this cluster
        lacks a label that the scorer needs) keeps a stopped entry, so that its scores expire normally and its records
        stay. The entry is removed if the scorer is deleted or masked, if another scorer has its score name, or if it
        can run and does not select the cluster.
        """
        entries = {
            plan.name: entry
            for plan in self.list_running_scorers(cluster)
            if (entry := plan.make_entry(cluster, current_entries.get(plan.name))) is not None
        }
        if not self.is_enabled or cluster not in self.clusters:
            return entries
        other_entries = {name: entry for name, entry in current_entries.items() if name not in entries}
        for name, entry, plan in self._list_kept_entries(cluster, other_entries):
            cannot_run = plan is None or plan.runnable is None or isinstance(plan.variants.get(cluster), Obstacle)
            if cannot_run:
                entries[name] = _stop_entry(entry, plan)
        return entries

    def stop_entries(self, cluster: str, current_entries: Mapping[str, Entry]) -> dict[str, Entry]:
        """Return the stopped entries by scorer while a cluster or the configuration is temporarily absent.

        If the cluster or the configuration is absent, the entries count as suspended, because no score is due.
        """
        stopped_entries = {
            name: _stop_entry(entry, plan) for name, entry, plan in self._list_kept_entries(cluster, current_entries)
        }
        if self.has_no_config or cluster not in self.clusters:
            suspension = {"suspended": True, "suspended_until": None}
            return {name: entry.model_copy(update=suspension) for name, entry in stopped_entries.items()}
        return stopped_entries

    def _list_kept_entries(
        self, cluster: str, current_entries: Mapping[str, Entry]
    ) -> Iterator[tuple[str, Entry, ScorerPlan | None]]:
        """Yield (name, entry, plan) of unmasked scorers that keep their entry; plan is None for unreadable scorers."""
        for name, entry in current_entries.items():
            if self.masks.hides(cluster, entry.score_name):
                continue
            key = self._find_owner(name, entry.namespace)
            plan = self.scorers.get(key)
            if key in self.unreadable if plan is None else not plan.has_no_name:
                yield name, entry, plan

    def _find_owner(self, name: str, namespace: str) -> str:
        """Return the key of the scorer in `namespace`, or in any if empty, that owns this name; empty without one."""
        key = self.find_owner_key(name) or ""
        return key if is_owner(namespace, key.partition("/")[0]) else ""

    def list_clusters(self, plan: ScorerPlan) -> list[str]:
        """Return the clusters on which a scorer runs, sorted."""
        if plan.runnable is None or not self.is_enabled:
            return []
        return sorted(name for name in self.clusters if self.runs_on(plan, name))

    def list_delivered_secrets(self, cluster: str) -> dict[str, str]:
        """Return the Secrets delivered to a cluster: name on the cluster -> name on the hub."""
        return {
            target: copy.name
            for plan in self.list_running_scorers(cluster)
            for target, copy in plan.get_secrets(cluster).items()
        }

    def find_clusters_with_secret(self, secret: str) -> set[str]:
        """Return the clusters to which this Secret of the hub is delivered."""
        return self._clusters_by_secret.get(secret, set())

    @cached_property
    def _clusters_by_secret(self) -> Mapping[str, set[str]]:
        """Secret -> clusters to which it is delivered. This index makes changes of thousands of Secrets fast."""
        clusters: dict[str, set[str]] = {}
        for plan in self.scorers.values():
            for cluster in self.list_clusters(plan) if any(plan.secrets.values()) else ():
                for copy in plan.get_secrets(cluster).values():
                    clusters.setdefault(copy.name, set()).add(cluster)
        return clusters

    def list_scorers_without_room(self) -> list[ScorerPlan]:
        """Return the scorers that do not fit into the ManifestWork of some clusters."""
        return [
            plan
            for plan in self.scorers.values()
            if any(obstacle.reason == ResolveReason.NoRoom for obstacle in plan.obstacles.values())
        ]

    @cached_property
    def running_scorer_count(self) -> int:
        """Number of scorers that run on some cluster."""
        # Clusters share lists.
        lists = {id(plans): plans for plans in map(self.list_running_scorers, self.clusters)}
        return len({plan.scorer.key for plans in lists.values() for plan in plans})

    @cached_property
    def masked_pair_count(self) -> int:
        """Number of (cluster, running scorer) pairs that masks hide."""
        if not self.is_enabled or not self.masks.masks:
            return 0
        names = [plan.runnable.score_name for plan in self.scorers.values() if plan.runnable is not None]
        return sum(self.masks.hides(cluster, name) for cluster in self.clusters for name in names)

    def make_records(self, current_records: Mapping[str, ScorerRecord]) -> dict[str, ScorerRecord]:
        """Return the desired records by scorer name; `current_records` are those in the registry now.

        A scorer that currently cannot be resolved or read keeps its record, suspended. A scorer whose score name
        belongs to another scorer has no record. Without a configuration no score is published.
        """
        records = {record.name: record for plan in self.scorers.values() if (record := plan.record) is not None}
        for plan in self.scorers.values():
            current_record = current_records.get(plan.name)
            if plan.resolved_scorer is not None or plan.has_no_name or current_record is None or plan.name in records:
                continue
            if is_owner(current_record.namespace, plan.namespace):
                health = plan.scorer.status.health_status.value
                records[plan.name] = current_record.model_copy(
                    update={"suspended": True, "health": health, "problem": plan.problem}
                )
        for name, current_record in current_records.items() if self.unreadable else ():
            if (key := self._find_owner(name, current_record.namespace)) in self.unreadable:
                problem = f"{INVALID}: {self.unreadable[key]}"
                records[name] = current_record.model_copy(
                    update={"suspended": True, "health": "Unknown", "problem": problem}
                )
        if self.has_no_config:
            return {name: record.model_copy(update={"destination": "None"}) for name, record in records.items()}
        return records

    def list_scorer_names(self) -> frozenset[str]:
        """Return the names of all existing scorers, except those whose name belongs to another namespace."""
        keys = self.unreadable.keys() | self.scorers.keys()
        names = {name for name in self.claims.scorers if self.find_owner_key(name) in keys}
        # Scorers that are being deleted have no claim, but still exist.
        names.update(key.partition("/")[2] for key in self.terminating)
        return frozenset(names)

    def exists(self, namespace: str, name: str) -> bool:
        """Return True if the scorer exists, running or not."""
        key = f"{namespace}/{name}"
        return key in self.scorers or key in self.unreadable

    def find_owner_key(self, name: str) -> str | None:
        """Return the key of the scorer that owns this name and the data under it in Redis; None if no scorer does."""
        queue = self.claims.scorers.get(name)
        return queue[0].owner if queue else None


class Differences(NamedTuple):
    """The objects to reconcile after a change of the plan."""

    #: `namespace/name` of DynamicScorers.
    scorers: frozenset[str]
    #: Names of clusters.
    clusters: frozenset[str]


def find_differences(old_plan: FleetPlan, new_plan: FleetPlan) -> Differences:
    """Return the objects that are affected by a change of the plan."""
    scorers = {
        key
        for key in old_plan.scorers.keys() | new_plan.scorers.keys()
        if (old_scorer := old_plan.scorers.get(key)) is not (new_scorer := new_plan.scorers.get(key))
        and _get_general_parts(old_scorer) != _get_general_parts(new_scorer)
    }
    clusters = {name for name, _ in old_plan.clusters.items() ^ new_plan.clusters.items()}
    relabelled_clusters = {name for name, labels in new_plan.labels.items() if old_plan.labels.get(name) != labels}
    # Compare variants by cluster, so that a new or relabelled cluster does not trigger all other clusters.
    varied_clusters = {
        key: _find_varied_clusters(old_plan.scorers[key], plan)
        for key, plan in new_plan.scorers.items()
        if key not in scorers and old_plan.scorers[key] is not plan
    }
    scorers |= {key for key, _ in old_plan.unreadable.items() ^ new_plan.unreadable.items()}
    affects_all = (old_plan.is_enabled, old_plan.has_no_config) != (
        new_plan.is_enabled,
        new_plan.has_no_config,
    ) or old_plan.masks != new_plan.masks
    # The status of a scorer counts its clusters, and the delivery to a cluster contains its scorers.
    every_scorer = new_plan.scorers.keys() if affects_all or clusters else set()
    every_cluster = old_plan.clusters.keys() | new_plan.clusters.keys() if affects_all or scorers else set()
    varied_scorers = {key for key, names in varied_clusters.items() if names}
    return Differences(
        frozenset(scorers | every_scorer | varied_scorers),
        frozenset(clusters.union(every_cluster, relabelled_clusters, *varied_clusters.values())),
    )


def _stop_entry(entry: Entry, plan: ScorerPlan | None) -> Entry:
    """Return a stopped copy of an entry that cannot run, suspended if its scorer is known to be suspended."""
    if plan is None or plan.resolved_scorer is None:
        return entry.make_stopped()
    pause = {"suspended": plan.is_suspended, "suspended_until": plan.suspended_until}
    return entry.make_stopped().model_copy(update=pause)


def _get_general_parts(plan: ScorerPlan | None) -> object:
    """Return the parts of a plan that may affect every cluster."""
    if plan is None:
        return None
    return plan.resolved_scorer, plan.obstacle, plan.runnable is None, plan.suspended_until, plan.record


def _find_varied_clusters(old_plan: ScorerPlan, new_plan: ScorerPlan) -> set[str]:
    """Return the clusters whose variant changed; the caller has found no other change of the scorer's plan."""
    # Clusters without an entry in `variants` have this variant.
    default_variant = new_plan.resolved_scorer.summary if new_plan.resolved_scorer is not None else None
    names = old_plan.variants.keys() | new_plan.variants.keys()
    return {
        name
        for name in names
        if old_plan.variants.get(name, default_variant) != new_plan.variants.get(name, default_variant)
    }


def make_plan(
    scorers: Iterable[DynamicScorer],
    config: DynamicScoringConfig | None,
    clusters: Iterable[ManagedCluster],
    now: datetime,
    token_hosts: TokenHosts = NO_HOSTS,
    unhealthy: Mapping[str, Obstacle] = MappingProxyType({}),
    authentications: Iterable[ScoringAuthentication] = (),
    delivery: DeliverableSecrets = NO_DELIVERY,
    unreadable_authentications: Mapping[str, str] = MappingProxyType({}),
    cache: PlanCache | None = None,
    limit: int = manifestwork.MAX_BYTES,
    names: NameRules = NO_RULES,
    scorer_hosts: TokenHosts = NO_HOSTS,
    misplaced_configs: Set[str] = frozenset(),
    cluster_sets: Sequence[Mapping[str, Any]] = (),
) -> FleetPlan:
    """Return the desired state. Objects that are being deleted count as absent.

    `now` decides whether pauses have ended. `token_hosts` are the token servers that a `/config` may set. `unhealthy`
    maps the key of a scorer to the reason why its scoring API is Inactive. `authentications` are all readable
    ScoringAuthentications, and `unreadable_authentications` maps the keys of the others to their errors. `delivery` has
    the deliverable Secrets of the hub. `cache` has the results of the last plan and is updated. `limit` is the maximum
    size of a ManifestWork in bytes. `names` decides about names that several scorers claim. `scorer_hosts` are the
    servers that scorers outside of the hub's own namespace may use. `misplaced_configs` are the namespaces, except the
    hub's own, that have a DynamicScoringConfig. `cluster_sets` are all ManagedClusterSets.
    """
    authentication_by_name: Authentications = {
        **unreadable_authentications,
        **{
            authentication.key: authentication
            if authentication.metadata.deletion_timestamp is None
            # A finalizer keeps the object, so users still see it. The text explains why it does not count.
            else "it is being deleted"
            for authentication in authentications
        },
    }
    served_clusters = {cluster.metadata.name: cluster for cluster in clusters if cluster.is_served}
    cluster_facts = [cluster.make_facts(cluster_sets) for cluster in served_clusters.values()]
    present_scorers = [scorer for scorer in scorers if scorer.metadata.deletion_timestamp is None]
    is_enabled = config is not None and config.metadata.deletion_timestamp is None
    delivery = delivery.with_targets(authentication_by_name.values(), cluster_facts)
    cache = cache or PlanCache()
    shared_inputs = (token_hosts, delivery, names.home, scorer_hosts)
    plans = cache.update(
        present_scorers,
        unhealthy,
        now,
        shared_inputs,
        cluster_facts,
        # The plans of other scorers remain, because the author of a ScoringAuthentication may change it all the time.
        lambda scorer: select_referenced(scorer, authentication_by_name),
        lambda scorer, referenced: _plan_scorer(
            scorer, now, token_hosts, referenced, cluster_facts, delivery, names.home, scorer_hosts, cache.variants
        ),
    )
    plans |= {
        key: ScorerPlan(misplaced_plan.scorer, None, _make_misplaced_obstacle(misplaced_plan.namespace, names.home))
        for key, misplaced_plan in plans.items()
        if misplaced_plan.namespace in misplaced_configs
    }
    claims, name_obstacles = _decide_names(plans, names, int(now.timestamp()), cache)
    for key, obstacle in name_obstacles.items():
        plans[key] = replace(plans[key], obstacle=obstacle)
    for key, obstacle in find_input_obstacles(plans).items():
        if plans[key].obstacle is None:
            plans[key] = replace(plans[key], obstacle=obstacle)
    plan = FleetPlan(
        scorers=plans,
        clusters={name: cluster.metadata.uid for name, cluster in served_clusters.items()},
        labels={name: select_grouping_labels(cluster.metadata.labels) for name, cluster in served_clusters.items()},
        masks=MaskIndex(frozenset(_expand_masks(config.spec.all_masks if config is not None else (), cluster_facts))),
        is_enabled=is_enabled,
        has_no_config=not is_enabled,
        limit=limit,
        claims=claims,
        home=names.home,
    )
    return _check_sizes(_check_secret_names(plan), config.metadata.namespace if config is not None else "", cache)


def _decide_names(
    plans: Mapping[str, ScorerPlan], names: NameRules, now: int, cache: PlanCache
) -> tuple[NameClaims, Mapping[str, Obstacle]]:
    """Return the decisions about names: those of the last plan if they are final and no input has changed."""
    inputs = names, {key: plan.name_inputs for key, plan in plans.items()}
    if cache.name_inputs != inputs:
        cache.name_decisions = decide_names(plans, names, now)
        claims, _ = cache.name_decisions
        # The decisions change with the time if a name is kept for a deleted scorer.
        is_final = claims == names.claims and not claims.former and claims.next_end == math.inf
        cache.name_inputs = inputs if is_final else None
    return cache.name_decisions


def _make_misplaced_obstacle(namespace: str, home: str) -> Obstacle:
    """Return the obstacle of a scorer whose namespace has masks that upstream's manager obeyed and this hub ignores."""
    return Obstacle(
        CONFIG_MISPLACED,
        f"the DynamicScoringConfig {CONFIG_NAME} in namespace {namespace} does not count, so this scorer would run on "
        f"clusters that it masks: add its masks to the one in namespace {home}, and delete it",
    )


def _check_hosts(plan: ScorerPlan, allowed_hosts: TokenHosts, clusters: Iterable[ClusterFacts]) -> ScorerPlan:
    """Return the plan with an obstacle on clusters where the scorer uses servers that are not allowed.

    `clusters` are empty if the scorer is the same on all clusters.
    """
    if plan.resolved_scorer is None:
        return plan
    summary = plan.resolved_scorer.summary
    refusal = find_server_refusal(allowed_hosts, list_servers(summary))
    config_urls = filter(None, [plan.scorer.spec.config_url])
    general_refusal = find_server_refusal(allowed_hosts, config_urls) or ("" if plan.variants else refusal)
    if general_refusal:
        return ScorerPlan(plan.scorer, None, Obstacle(str(ResolveReason.HostNotAllowed), general_refusal))
    variants = dict(plan.variants)
    for cluster in clusters:
        variant = plan.variants.get(cluster.name, summary)
        if isinstance(variant, ScorerSummary) and (
            cluster_refusal := refusal
            if variant is summary
            else find_server_refusal(allowed_hosts, list_servers(variant))
        ):
            variants[cluster.name] = Obstacle(str(ResolveReason.HostNotAllowed), cluster_refusal)
    return replace(plan, variants=variants)


def _check_secret_names(plan: FleetPlan) -> FleetPlan:
    """Return the plan with obstacles for scorers whose Secrets would replace Secrets of older scorers on a cluster."""
    scorers_with_secrets = [scorer for scorer in plan.scorers.values() if any(scorer.secrets.values())]
    copies_by_target = (copies for scorer in scorers_with_secrets for copies in scorer.secrets.values())
    if all(target == copy.name for copies in copies_by_target for target, copy in copies.items()):
        # Secrets that keep their names cannot conflict.
        return plan
    scorers_with_secrets.sort(
        key=lambda plan: (plan.scorer.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC), plan.scorer.key)
    )
    scorers = dict(plan.scorers)
    for cluster in plan.clusters:
        target_names = secretdelivery.TargetNames()
        for scorer in scorers_with_secrets:
            if not plan.runs_on(scorer, cluster):
                continue
            if conflict := target_names.add(scorer.name, scorer.get_secrets(cluster)):
                conflicting_scorer = scorers[scorer.scorer.key]
                obstacle = Obstacle(str(ResolveReason.SecretNotDelivered), conflict)
                scorers[scorer.scorer.key] = replace(
                    conflicting_scorer, variants={**conflicting_scorer.variants, cluster: obstacle}
                )
    return replace(plan, scorers=scorers)


def _check_sizes(plan: FleetPlan, own_namespace: str, cache: PlanCache) -> FleetPlan:
    """Return the plan with obstacles for scorers that do not fit into the ManifestWork of a cluster."""
    largest_loads = (scorer.largest_load for scorer in plan.scorers.values() if scorer.runnable)
    if not plan.is_enabled or manifestwork.all_fit(largest_loads, plan.limit):
        return plan
    clusters_by_scorers: dict[object, list[str]] = {}
    for cluster in plan.clusters:
        clusters_by_scorers.setdefault(plan.identify_running_scorers(cluster), []).append(cluster)
    exclusions: dict[str, list[Exclusion]] = {}
    for clusters in map(tuple, clusters_by_scorers.values()):
        loads = (scorer.make_load(clusters[0]) for scorer in plan.list_running_scorers(clusters[0]))
        for key, reason in manifestwork.find_excluded(loads, own_namespace, plan.limit):
            exclusions.setdefault(key, []).append(Exclusion(str(ResolveReason.NoRoom), reason, clusters))
    return replace(plan, scorers={**plan.scorers, **cache.exclude(plan.scorers, exclusions)})


def _plan_scorer(
    scorer: DynamicScorer,
    now: datetime,
    token_hosts: TokenHosts,
    authentications: Authentications,
    clusters: Sequence[ClusterFacts],
    delivery: DeliverableSecrets,
    home: str,
    scorer_hosts: TokenHosts,
    cache: ResolutionCache,
) -> ScorerPlan:
    """Return the plan of a scorer, with at least the ScoringAuthentications that it references.

    Any error becomes an obstacle, because an exception would break the whole plan.
    """
    try:
        resolved_scorer, results = resolve_for_clusters(scorer, token_hosts, authentications, clusters, cache)
        depends_on_clusters = not clusters or bool(results) or secretdelivery.is_per_cluster(resolved_scorer)
        # Many scorers may select most of many clusters, so keep the results that differ.
        results = {name: result for name, result in results.items() if result is not resolved_scorer.summary}
        if home and scorer.metadata.namespace != home:
            _check_account(resolved_scorer, results.values(), home)
            resolved_scorer, results = _add_namespace(scorer.metadata.namespace, resolved_scorer, results)
        secretdelivery.check_deliverable(resolved_scorer, delivery)
        if scorer.metadata.namespace != delivery.namespace and delivery.unreleased:
            for summary in (
                resolved_scorer.summary,
                *(result for result in results.values() if isinstance(result, ScorerSummary)),
            ):
                secretdelivery.check_foreign(summary, delivery)
        variants = {name: _make_variant(result) for name, result in results.items()}
        summaries = {"": resolved_scorer.summary, **variants}
        secrets = _copy_secrets(resolved_scorer, clusters, delivery, variants)
        plan = replace(
            _make_resolved_plan(scorer, resolved_scorer, now),
            variants=variants,
            parts={
                name: make_part(variant) for name, variant in summaries.items() if isinstance(variant, ScorerSummary)
            },
            secrets=secrets,
            depends_on_clusters=depends_on_clusters,
        )
        if scorer_hosts and scorer.metadata.namespace != home:
            plan = _check_hosts(plan, scorer_hosts, clusters if depends_on_clusters else ())
        # Compute these values here, because a later error would stop all scorers.
        _ = plan.record, plan.make_entry("any")
        sanitize_resource_name(resolved_scorer.score_name)
    except ResolutionError as error:
        return ScorerPlan(scorer, None, Obstacle(str(error.reason), str(error)))
    except Exception as error:  # noqa: BLE001 (its caller logs it)
        return ScorerPlan(scorer, None, make_internal_obstacle(error, "planning"))
    return plan


def _check_account(
    resolved_scorer: ResolvedScorer, results: Iterable[ScorerSummary | ResolutionError | None], home: str
) -> None:
    """Raise ResolutionError for a scorer in another namespace that uses the identity of the agents."""
    for summary in (resolved_scorer.summary, *(result for result in results if isinstance(result, ScorerSummary))):
        for access in summary.accesses:
            if account_use := access.methods.account_use:
                raise ResolutionError(
                    ResolveReason.InvalidAuthentication,
                    f"ScoringAuthentication {access.authentication!r}: {account_use} uses the identity of the "
                    "agents, which "
                    f"only those in the hub's own namespace, {home}, may; use a Secret, or have the hub's admin create "
                    "the DynamicScorer and its ScoringAuthentication there",
                )


def _add_namespace(
    namespace: str, resolved_scorer: ResolvedScorer, results: Mapping[str, ScorerSummary | ResolutionError | None]
) -> tuple[ResolvedScorer, dict[str, ScorerSummary | ResolutionError | None]]:
    """Return the resolution and results, with the scorer's namespace in all summaries."""
    return replace(resolved_scorer, summary=resolved_scorer.summary.of_namespace(namespace)), {
        cluster: result.of_namespace(namespace) if isinstance(result, ScorerSummary) else result
        for cluster, result in results.items()
    }


def _copy_secrets(
    resolved_scorer: ResolvedScorer,
    clusters: Iterable[ClusterFacts],
    delivery: DeliverableSecrets,
    variants: dict[str, ScorerSummary | Obstacle | None],
) -> dict[str, Mapping[str, SecretCopy]]:
    """Return the delivered Secrets by cluster; add an obstacle to `variants` for each cluster that lacks a Secret."""
    if not secretdelivery.is_per_cluster(resolved_scorer):
        return {"": delivery.make_copies(resolved_scorer)}
    secrets: dict[str, Mapping[str, SecretCopy]] = {"": {}}
    for cluster in clusters:
        if not isinstance(variants.get(cluster.name, resolved_scorer.summary), ScorerSummary):
            continue
        try:
            secretdelivery.check_deliverable(resolved_scorer, delivery, cluster.name)
            secrets[cluster.name] = delivery.make_copies(resolved_scorer, cluster.name)
        except ResolutionError as error:
            variants[cluster.name] = Obstacle(str(error.reason), str(error))
    return secrets


def _make_variant(result: ScorerSummary | ResolutionError | None) -> ScorerSummary | Obstacle | None:
    return Obstacle(str(result.reason), str(result)) if isinstance(result, ResolutionError) else result


def _make_resolved_plan(scorer: DynamicScorer, resolved_scorer: ResolvedScorer, now: datetime) -> ScorerPlan:
    if scorer.spec.execution.suspend:
        return ScorerPlan(scorer, resolved_scorer, None, is_suspended=True)
    if resolved_scorer.paused_until is not None and resolved_scorer.paused_until > now.timestamp():
        return ScorerPlan(
            scorer, resolved_scorer, None, is_suspended=True, suspended_until=resolved_scorer.paused_until
        )
    return ScorerPlan(scorer, resolved_scorer, None)
