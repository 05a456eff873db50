"""The plan of one scorer in the desired state, or the obstacle that excludes the scorer. Pure functions, no I/O.

The plan is cached until one of its inputs changes. The whole desired state is rebuilt after a change of any object,
dozens of times while a thousand scorers become Active. Therefore the cost of a rebuild must depend on the size of the
change, not of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

from dsf.api.nameclaims import NameClaims
from dsf.api.resolve import ResolutionCache, ResolvedScorer
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringauthentication import ClusterFacts
from dsf.api.summary import ScorerSummary
from dsf.api.types import NAME_CONFLICT, HealthStatus
from dsf.hub.manifestwork import Load, ScorerPart
from dsf.hub.secretdelivery import SecretCopy
from dsf.store.entries import Entry
from dsf.store.registry import ScorerRecord

_Inputs = TypeVar("_Inputs")


@dataclass(frozen=True)
class Obstacle:
    """The reason why a scorer does not run, or why a check of its scoring API failed.

    Users see `reason` and `message` in a condition.
    """

    reason: str
    message: str
    #: The hub's internal error; None if the user has to change something.
    error: Exception | None = field(default=None, compare=False)


class Exclusion(NamedTuple):
    """The reason why a scorer does not run on some clusters, as in an Obstacle."""

    reason: str
    message: str
    clusters: tuple[str, ...]


#: Condition reason for an internal error with a scorer.
INTERNAL_ERROR: Final = "InternalError"
#: Condition reason for an unreadable DynamicScorer.
INVALID: Final = "Invalid"
#: Condition reason for a scorer whose namespace may not use its score name.
NAME_NOT_ALLOWED: Final = "ScoreNameNotAllowed"
#: Condition reason for scorers whose namespace has an ignored DynamicScoringConfig.
CONFIG_MISPLACED: Final = "ScoringConfigMisplaced"


def make_internal_obstacle(error: Exception, step: str) -> Obstacle:
    """Return the obstacle for an internal error with a scorer; `step` is what failed, such as "planning"."""
    text = f"the hub cannot go on with this scorer: {type(error).__name__} while {step}; the hub's log says where"
    return Obstacle(INTERNAL_ERROR, text, error)


@dataclass(frozen=True)
class ScorerPlan:
    """A scorer and its resolution, or the obstacle to it."""

    scorer: DynamicScorer
    #: None if the scorer could not be resolved (see `obstacle`).
    resolved_scorer: ResolvedScorer | None
    obstacle: Obstacle | None
    is_suspended: bool = False
    #: Unix time at which the suspension ends; None without an end.
    suspended_until: float | None = None
    #: Known reason why the scoring API is Inactive.
    unhealthy: Obstacle | None = None
    #: Cluster -> its summary, the obstacle there, or None if the cluster is not selected. Clusters that are not in this
    #: mapping have the summary of `resolved_scorer`.
    variants: Mapping[str, ScorerSummary | Obstacle | None] = field(default_factory=dict)
    #: Cluster -> part of its ManifestWork. The key "" stands for all clusters that are not in this mapping.
    parts: Mapping[str, ScorerPart] = field(default_factory=dict)
    #: Cluster, as in `parts` -> Secrets delivered with the scorer, by their names on the cluster.
    secrets: Mapping[str, Mapping[str, SecretCopy]] = field(default_factory=lambda: {"": {}})
    #: False if this plan is the same for any clusters.
    depends_on_clusters: bool = True

    def get_part(self, cluster: str) -> ScorerPart:
        """Return the part of the scorer in the ManifestWork of a cluster."""
        return self.parts.get(cluster, self.parts[""])

    def get_secrets(self, cluster: str) -> Mapping[str, SecretCopy]:
        """Return the Secrets delivered to a cluster with the scorer, by their names on the cluster."""
        return self.secrets.get(cluster, self.secrets[""])

    @cached_property
    def largest_load(self) -> Load:
        """Maximum size of the scorer in the ManifestWork of any cluster."""
        largest_secrets = max(self.secrets.values(), key=lambda copies: sum(copy.size for copy in copies.values()))
        return self._make_load(max(part.size for part in self.parts.values()), largest_secrets)

    def make_load(self, cluster: str) -> Load:
        """Return the size of the scorer in the ManifestWork of a cluster."""
        return self._make_load(self.get_part(cluster).size, self.get_secrets(cluster))

    def _make_load(self, size: int, secrets: Mapping[str, SecretCopy]) -> Load:
        sizes = {target: copy.size for target, copy in secrets.items()}
        return Load(self.scorer.key, self.scorer.metadata.creation_timestamp, size, sizes)

    def get_summary(self, cluster: str) -> ScorerSummary | None:
        """Return the summary for a cluster; None if the scorer does not run there now."""
        if self.runnable is None:
            return None
        variant = self.variants.get(cluster, self.runnable.summary)
        return None if isinstance(variant, Obstacle) else variant

    @cached_property
    def is_excluded(self) -> bool:
        """True if the scorer runs on none of the clusters in `variants`."""
        return bool(self.variants) and not any(isinstance(variant, ScorerSummary) for variant in self.variants.values())

    @property
    def obstacles(self) -> dict[str, Obstacle]:
        """Obstacles by cluster."""
        return {cluster: variant for cluster, variant in self.variants.items() if isinstance(variant, Obstacle)}

    @cached_property
    def name(self) -> str:
        """Name of the scorer, as used by agents and in Redis."""
        return self.scorer.metadata.name

    @property
    def namespace(self) -> str:
        """Namespace of the DynamicScorer."""
        return self.scorer.metadata.namespace

    @property
    def score_name(self) -> str | None:
        """Score name; None if the scorer could not be resolved."""
        return self.resolved_scorer.score_name if self.resolved_scorer is not None else None

    @cached_property
    def name_inputs(self) -> tuple[object, ...]:
        """All parts of the plan on which decisions about names depend."""
        spec = self.scorer.spec
        params_name = spec.scoring.params.name if spec.scoring.params is not None else None
        return self.scorer.metadata.creation_timestamp, self.score_name, spec.config_url, params_name

    @property
    def has_no_name(self) -> bool:
        """True if the scorer does not own its name, nor any data under that name."""
        return self.obstacle is not None and self.obstacle.reason in (NAME_CONFLICT, NAME_NOT_ALLOWED)

    @cached_property
    def runnable(self) -> ResolvedScorer | None:
        """The resolution if the scorer can run; None if it currently does not run on any cluster."""
        is_active = self.scorer.status.health_status is HealthStatus.Active
        return self.resolved_scorer if self.obstacle is None and is_active else None

    @property
    def problem(self) -> str:
        """Reason why the scorer does not run, as `<reason>: <sentence>`; empty if it can run or if unknown."""
        obstacle = self.obstacle
        if obstacle is None and self.scorer.status.health_status is HealthStatus.Inactive:
            obstacle = self.unhealthy
        return f"{obstacle.reason}: {obstacle.message}" if obstacle is not None else ""

    @cached_property
    def record(self) -> ScorerRecord | None:
        """Record for the results worker and users; None if the scorer has no resolution."""
        if self.resolved_scorer is None or self.obstacle is not None:
            return None
        spec, resolved_scorer = self.scorer.spec, self.resolved_scorer
        return ScorerRecord(
            name=self.name,
            namespace=self.namespace,
            score_name=resolved_scorer.score_name,
            description=spec.short_description,
            dimension_formats=spec.dimension_formats,
            aggregate=spec.aggregate,
            destination=spec.score_destination,
            location=spec.location,
            interval=resolved_scorer.summary.scoring_interval,
            validity=resolved_scorer.summary.validity_seconds,
            rate_limit=spec.execution.rate_limit,
            exposition=spec.exposition or "",
            suspended=self.is_suspended,
            health=self.scorer.status.health_status.value,
            problem=self.problem,
            when_failing=spec.execution.when_failing,
            when_empty=spec.execution.when_empty,
            hold=spec.execution.hold,
            inputs=tuple(spec.source.scores or ()),
        )

    @cached_property
    def _entry(self) -> Entry | None:
        """The schedule entry without a cluster; None if the scorer does not run now."""
        resolved_scorer = self.runnable
        if resolved_scorer is None:
            return None
        return Entry(
            cluster="",
            scorer=self.name,
            namespace=self.namespace,
            score_name=resolved_scorer.score_name,
            interval=resolved_scorer.summary.scoring_interval,
            rate_limit=self.scorer.spec.execution.rate_limit,
            suspended=self.is_suspended,
            suspended_until=self.suspended_until,
        )

    def make_entry(self, cluster: str, current_entry: Entry | None = None) -> Entry | None:
        """Return the schedule entry for an unmasked cluster; None if the scorer does not run now.

        Returns `current_entry`, the present entry for this cluster, if it is equal.
        """
        if self._entry is None:
            return None
        if current_entry is not None and {**current_entry.__dict__, "cluster": ""} == self._entry.__dict__:
            return current_entry
        return self._entry.model_copy(update={"cluster": cluster})


class PlanCache:
    """A cache of the plans of all scorers. Instances are not thread-safe."""

    def __init__(self) -> None:
        #: Resolutions by cluster, for scorers that differ between clusters.
        self.variants: ResolutionCache = {}
        #: The inputs of the last decisions about names, None if these are not final, and the decisions.
        self.name_inputs: object = None
        self.name_decisions: tuple[NameClaims, dict[str, Obstacle]] = (NameClaims(), {})
        self._shared_inputs: tuple[object, ...] = ()
        self._clusters: Sequence[ClusterFacts] = ()
        #: Key of a scorer -> its plan, and the inputs of this plan besides the scorer and the shared ones.
        self._cached_plans: dict[str, tuple[ScorerPlan, object]] = {}
        # Scorer -> the plan without exclusions, the exclusions, and the plan with them.
        self._excluded_plans: dict[str, tuple[ScorerPlan, list[Exclusion], ScorerPlan]] = {}

    def update(
        self,
        scorers: Iterable[DynamicScorer],
        unhealthy: Mapping[str, Obstacle],
        now: datetime,
        shared_inputs: tuple[object, ...],
        clusters: Sequence[ClusterFacts],
        find_own_inputs: Callable[[DynamicScorer], _Inputs],
        make: Callable[[DynamicScorer, _Inputs], ScorerPlan],
    ) -> dict[str, ScorerPlan]:
        """Return the plans of these scorers by key, and cache them in place of earlier plans.

        `make` plans a scorer; it is called only for scorers without a valid cached plan. `unhealthy` maps the key of a
        scorer to the reason why its scoring API is Inactive. `shared_inputs` are the inputs that all plans have in
        common, besides the `clusters`, on which most plans do not depend. `find_own_inputs` returns the other objects
        that the plan of a scorer depends on.
        """
        cached_plans = self._cached_plans if shared_inputs == self._shared_inputs else {}
        has_same_clusters = clusters == self._clusters
        new_plans: dict[str, tuple[ScorerPlan, object]] = {}
        for scorer in scorers:
            plan, cached_inputs = cached_plans.get(scorer.key, (None, None))
            unhealthy_cause, own_inputs = unhealthy.get(scorer.key), find_own_inputs(scorer)
            if (
                plan is None
                or (plan.scorer, plan.unhealthy, cached_inputs) != (scorer, unhealthy_cause, own_inputs)
                or (plan.depends_on_clusters and not has_same_clusters)
                or _has_pause_ended(plan, now)
            ):
                plan = replace(make(scorer, own_inputs), unhealthy=unhealthy_cause)
            new_plans[scorer.key] = plan, own_inputs
        plans = {key: plan for key, (plan, _) in new_plans.items()}
        # Do not cache a plan with an internal error, because the next attempt may succeed.
        self._cached_plans = {
            key: new_plans[key] for key, plan in plans.items() if plan.obstacle is None or plan.obstacle.error is None
        }
        self._shared_inputs, self._clusters = shared_inputs, clusters
        for removed_key in self.variants.keys() - plans.keys():
            del self.variants[removed_key]
        return plans

    def exclude(
        self, plans: Mapping[str, ScorerPlan], exclusions: Mapping[str, list[Exclusion]]
    ) -> dict[str, ScorerPlan]:
        """Return the plans of excluded scorers by key, with obstacles on the clusters of their exclusions.

        Returns the previous result for an unchanged scorer, so that it counts as unchanged.
        """
        previous_plans, self._excluded_plans = self._excluded_plans, {}
        # Scorers with the same exclusions share the obstacles, because there may be thousands of scorers and clusters.
        obstacles_by_exclusion: dict[Exclusion, dict[str, Obstacle]] = {}
        for key, scorer_exclusions in exclusions.items():
            plan = plans[key]
            previous_plan = previous_plans.get(key)
            if previous_plan is not None and previous_plan[0] is plan and previous_plan[1] == scorer_exclusions:
                self._excluded_plans[key] = previous_plan
                continue
            obstacles: dict[str, Obstacle] = {}
            for exclusion in scorer_exclusions:
                if exclusion not in obstacles_by_exclusion:
                    obstacle = Obstacle(exclusion.reason, exclusion.message)
                    obstacles_by_exclusion[exclusion] = dict.fromkeys(exclusion.clusters, obstacle)
                new_obstacles = obstacles_by_exclusion[exclusion]
                obstacles = {**obstacles, **new_obstacles} if obstacles else new_obstacles
            variants = {**plan.variants, **obstacles} if plan.variants else obstacles
            self._excluded_plans[key] = plan, scorer_exclusions, replace(plan, variants=variants)
        return {key: excluded_plan for key, (_, _, excluded_plan) in self._excluded_plans.items()}


def _has_pause_ended(plan: ScorerPlan, now: datetime) -> bool:
    """Return True if the pause of the scorer has ended."""
    return plan.suspended_until is not None and plan.suspended_until <= now.timestamp()
