"""Reconcilers for DynamicScorer and DynamicScoringConfig, which write their statuses.

The reconciler for scorers also starts their health checks and registers them. The cluster reconciler decides where a
scorer runs, and removes ManifestWorks and schedule entries when the effective configuration is deleted. Agents keep
their credentials while their clusters are accepted, so that they are ready for the next configuration.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

import redis
from pydantic import ValidationError

import dsf.log
from dsf.api.acts import ActResponse
from dsf.api.meta import Condition, ObjectMeta
from dsf.api.scorer import DynamicScorer, DynamicScorerStatus
from dsf.api.scoringconfig import DynamicScoringConfig, DynamicScoringConfigStatus
from dsf.api.types import MANIFESTWORK_NAME, OBSOLETE_FINALIZERS, UPSTREAM_FINALIZER, ConditionType
from dsf.backends.protocol import Backend, Kind, ObjectKey
from dsf.errors import DsfError, ObjectNotFoundError
from dsf.http.access import DIRECT, PLAIN, Access
from dsf.hub.admission import remove_response_texts
from dsf.hub.clusters import ClusterReconciler
from dsf.hub.conditions import (
    IGNORED,
    DeliveryCounts,
    make_config_status,
    make_failed_scorer_status,
    make_ignored_config_status,
    make_ignored_scorer_status,
    make_scorer_status,
    make_terminating_config_status,
    make_terminating_scorer_status,
    make_unreadable_scorer_status,
)
from dsf.hub.cycleoutcomes import CycleOutcomes
from dsf.hub.desiredstate import DesiredState
from dsf.hub.health import Health, HealthMonitor, HealthTarget
from dsf.hub.plan import FleetPlan
from dsf.hub.registrar import Registrar
from dsf.hub.scorerplan import ScorerPlan, make_internal_obstacle
from dsf.process import hubclock
from dsf.store.entries import Pace
from dsf.store.notices import ConditionNotice, ScorerNotice, truncate

log = dsf.log.get(__name__)

#: Maximum consecutive status writes of a scorer without a delay.
MAX_BURST: Final = 5
#: Seconds between further writes.
SECONDS_PER_WRITE: Final = 5.0

_Key = TypeVar("_Key", bound=Hashable)


class StatusWriteLimit(Generic[_Key]):
    """A rate limit for the status writes of each scorer. Thread-safe.

    Without the limit, the status of a scorer that alternates between success and failure would be written four times a
    second, and each write wakes all watchers of the scorer.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Scorer -> time.monotonic() until which its reserved writes last, at one write in SECONDS_PER_WRITE.
        self._used_until: dict[_Key, float] = {}

    def reserve_write(self, key: _Key) -> float:
        """Reserve a status write; return the seconds until it may happen, at most SECONDS_PER_WRITE."""
        now = self._clock()
        with self._lock:
            used_until = max(self._used_until.get(key, now), now) + SECONDS_PER_WRITE
            delay = used_until - now - MAX_BURST * SECONDS_PER_WRITE
            # Limit the reservations, because a delayed write also covers the changes of later reservations.
            self._used_until[key] = min(used_until, now + MAX_BURST * SECONDS_PER_WRITE)
        return min(max(delay, 0.0), SECONDS_PER_WRITE)

    def retain(self, keys: Container[_Key]) -> None:
        """Forget all scorers except `keys`."""
        with self._lock:
            self._used_until = {key: used_until for key, used_until in self._used_until.items() if key in keys}


#: Reasons of transitional states, and of states that another condition reports; they create no Event.
_REASONS_WITHOUT_EVENT: Final = frozenset({"Distributing", "NotDistributed"})
#: Conditions whose status True is a problem.
_BAD_WHEN_TRUE: Final = frozenset({IGNORED})


@dataclass(frozen=True)
class ScorerReconciler:
    """Reconciles DynamicScorers by key, including deleted ones. The cluster reconciler decides where a scorer runs."""

    backend: Backend
    registrar: Registrar
    desired_state: DesiredState
    health: HealthMonitor
    clusters: ClusterReconciler
    #: Called with each scorer that needs a newer plan.
    on_change: Callable[[ObjectKey], None]
    #: Returns the responses to the acts that were requested on a scorer.
    find_responses: Callable[[ObjectKey], list[ActResponse] | None]

    def reconcile(self, key: ObjectKey) -> float | None:
        """Reconcile one scorer. The status is written even if Redis is unreachable, and reports internal errors.

        Raises BackendError and redis.RedisError.
        """
        try:
            return self._reconcile(key)
        except (DsfError, redis.RedisError):
            raise
        except Exception as error:
            self._report_error(key, error)
            raise

    def _report_error(self, key: ObjectKey, error: Exception) -> None:
        """Report an internal error in the status of this scorer."""
        scorer = self.desired_state.get_scorer(key)
        if scorer is not None:
            now = datetime.now(UTC)
            status = make_failed_scorer_status(scorer, make_internal_obstacle(error, "working on it"), now=now)
            self._write_status(key, scorer.status.conditions, status)

    def _reconcile(self, key: ObjectKey) -> float | None:
        scorer = self.desired_state.get_scorer(key)
        if scorer is None:
            self.health.forget(key)
            plan = self.desired_state.plan
            self.registrar.sync_scorers(plan)
            self.registrar.notices.remove_others(plan.list_scorer_names())
            self._write_absent_status(key)
            return None
        if not self.desired_state.is_scorer_namespace(key.namespace):
            # Send no requests for the scorer, because unauthorised users could make the hub send them.
            self.health.forget(key)
            namespace = self.desired_state.config_key.namespace
            status = make_ignored_scorer_status(scorer, namespace, now=datetime.now(UTC))
            self._write_status(key, scorer.status.conditions, status)
            return None
        spec = scorer.spec
        access, is_home = self._make_access(scorer), self.desired_state.is_home(key.namespace)
        servers = [url for url in (spec.config_url, access.proxy) if url]
        refusal = self.desired_state.find_server_refusal(key.namespace, servers)
        uid, error = scorer.metadata.uid, spec.expression_error
        target = HealthTarget(spec.config_url, spec.config_sync_mode, access, uid, is_home, refusal, error)
        health = self.health.track(key, target, Health.from_status(scorer))
        plan = self.desired_state.plan
        scorer_plan = plan.scorers.get(scorer.key)
        if scorer_plan is None or not _is_planned_with(scorer_plan, health):
            # The scorer was created or checked after the plan was made. Its status needs a plan with the same health.
            self.on_change(key)
            return None
        cycles: CycleOutcomes | None = None
        pace: Pace | None = None
        redis_error: redis.RedisError | None = None
        try:
            problem = self.registrar.sync_scorers(plan).get(scorer_plan.name)
            if problem is not None:
                raise problem
            clusters = plan.list_clusters(scorer_plan)
            cycles, pace = (
                self.registrar.read_outcomes(scorer_plan, clusters),
                self.registrar.read_pace(scorer_plan, clusters),
            )
            if not is_home:
                cycles = replace(cycles, failures=remove_response_texts(cycles.failures))
        except redis.RedisError as error:
            redis_error = error
        status = make_scorer_status(
            scorer_plan,
            health,
            self._count_deliveries(plan, scorer_plan),
            cycles,
            pace,
            previous=scorer.status,
            now=datetime.now(UTC),
        )
        self._write_status(key, scorer.status.conditions, status)
        if redis_error is not None:
            raise redis_error
        if plan.find_owner_key(key.name) == scorer.key:
            self.registrar.notices.write_scorer(_make_notice(key, status))
        # Reconcile again at the end of a pause, because the registry and the status change then.
        pause_ends = [
            pause_end
            for pause_end in (scorer_plan.suspended_until, pace.pauses.ends if pace else None)
            if pause_end is not None
        ]
        return max(0.0, min(pause_ends) - hubclock.now()) + 0.05 if pause_ends else None

    def _write_absent_status(self, key: ObjectKey) -> None:
        """Write the status of an existing scorer that is not in the plan because it is unreadable or being deleted."""
        parse_error, manifest = self.desired_state.get_parse_error(key), self.backend.get(*key)
        if manifest is None or not self.desired_state.is_scorer_namespace(key.namespace):
            return
        try:
            previous_conditions = DynamicScorerStatus.model_validate(
                manifest.get("status") or {}, by_alias=True
            ).conditions
        except ValidationError:
            previous_conditions = []
        metadata, now = manifest["metadata"], datetime.now(UTC)
        if metadata.get("deletionTimestamp"):
            status = make_terminating_scorer_status(
                previous_conditions, ObjectMeta.model_validate(metadata, by_alias=True), now=now
            )
        elif parse_error:
            status = make_unreadable_scorer_status(
                parse_error, previous_conditions, metadata.get("generation") or 0, now=now
            )
        else:
            return
        self._write_status(key, previous_conditions, status)
        if self.desired_state.plan.find_owner_key(key.name) in (None, f"{key.namespace}/{key.name}"):
            self.registrar.notices.write_scorer(_make_notice(key, status))

    def _write_status(
        self, key: ObjectKey, previous_conditions: Sequence[Condition], status: DynamicScorerStatus
    ) -> None:
        complete_status = status.model_copy(update={"acts": self.find_responses(key)})
        write_status(self.backend, key, previous_conditions, complete_status)

    def _make_access(self, scorer: DynamicScorer) -> Access:
        """Return the hub's access to the scoring API, which may use a proxy, but no Secrets."""
        if scorer.spec.location == "Internal":
            return DIRECT
        auth = scorer.spec.scoring.auth
        if auth is None or auth.authentication_ref is None:
            return PLAIN
        authentication = self.desired_state.get_authentication(scorer.metadata.namespace, auth.authentication_ref.name)
        return PLAIN if authentication is None else Access(proxy=authentication.spec.proxy_url)

    def _count_deliveries(self, plan: FleetPlan, scorer_plan: ScorerPlan) -> DeliveryCounts:
        config = self.desired_state.config_key
        clusters = plan.list_clusters(scorer_plan)
        desired_count = len(clusters)
        problem, is_refused = self.clusters.find_problem(clusters)
        return DeliveryCounts(
            clusters=len(plan.clusters),
            desired=desired_count,
            distributed=min(self.clusters.count_distributed(scorer_plan.name), desired_count),
            config=f"{config.namespace}/{config.name}",
            is_enabled=plan.is_enabled,
            config_error=self.desired_state.get_parse_error(config),
            config_terminating=self.desired_state.config_terminating,
            is_counted=self.clusters.have_checked(clusters),
            problem=problem,
            is_refused=is_refused,
            without_addon=plan.without_addon,
        )


def _make_notice(key: ObjectKey, status: DynamicScorerStatus) -> ScorerNotice:
    conditions = (
        ConditionNotice(
            type=condition.type,
            status=condition.status,
            reason=condition.reason,
            message=truncate(condition.message),
            since=condition.last_transition_time.timestamp(),
        )
        for condition in status.conditions
    )
    return ScorerNotice(name=key.name, namespace=key.namespace, conditions=tuple(conditions))


def _is_planned_with(scorer_plan: ScorerPlan, health: Health) -> bool:
    planned_status = scorer_plan.scorer.status
    return (planned_status.health_status, planned_status.last_synced_config) == (health.status, health.config)


@dataclass(frozen=True)
class ConfigReconciler:
    """Reconciles DynamicScoringConfigs by key, including deleted ones."""

    backend: Backend
    registrar: Registrar
    desired_state: DesiredState
    clusters: ClusterReconciler
    #: Called when the configuration is absent, so that all scores are removed.
    on_no_config: Callable[[], None]
    #: uids of objects whose obsolete finalizers were removed. They are removed once per object, because a running
    #: manager of the upstream project would add its finalizer again.
    cleaned_uids: set[str] = field(default_factory=set)

    def reconcile(self, key: ObjectKey) -> float | None:
        """Reconcile one configuration. Raises BackendError and redis.RedisError."""
        if key == self.desired_state.config_key and self.desired_state.has_no_config:
            self.on_no_config()
        config = self.desired_state.get_config(key)
        if config is not None and config.metadata.deletion_timestamp is None:
            self._report(key, config)
        self._remove_obsolete_finalizers(key)
        # A configuration that is being deleted has a status only while other finalizers keep it.
        if (
            config is not None
            and config.metadata.deletion_timestamp is not None
            and not OBSOLETE_FINALIZERS.issuperset(config.metadata.finalizers)
        ):
            status = make_terminating_config_status(config, now=datetime.now(UTC))
            write_status(self.backend, key, config.status.conditions, status)
        return None

    def _report(self, key: ObjectKey, config: DynamicScoringConfig) -> None:
        """Write the status of a configuration that is not being deleted."""
        plan, now = self.desired_state.plan, datetime.now(UTC)
        if key != self.desired_state.config_key:
            own_namespace, stops_scorers = (
                self.desired_state.config_key.namespace,
                self.desired_state.is_scorer_namespace(key.namespace),
            )
            status = make_ignored_config_status(config, own_namespace, stops_scorers=stops_scorers, now=now)
        else:
            if config.status.conditions and not self.clusters.have_checked(plan.clusters):
                # The counts are incomplete after a start. The first check of the last cluster triggers a new report.
                return
            status = make_config_status(
                config,
                clusters=len(plan.clusters),
                distributed=self.clusters.count_up_to_date(),
                scorers=plan.running_scorer_count,
                masked=plan.masked_pair_count,
                agents=self._read_agent_problems(),
                without_addon=plan.without_addon,
                without_room=[scorer.scorer.key for scorer in plan.list_scorers_without_room()],
                now=now,
            )
        write_status(self.backend, key, config.status.conditions, status)

    def _remove_obsolete_finalizers(self, key: ObjectKey) -> None:
        """Remove finalizers of programs that no longer run, because `kubectl delete` would wait for them forever.

        If the effective configuration is being deleted, first delete the objects of upstream's manager, as its
        finalizer requires.
        """
        manifest = self.backend.get(*key)
        if manifest is None:
            return
        metadata = manifest["metadata"]
        finalizers = OBSOLETE_FINALIZERS.intersection(metadata.get("finalizers") or ())
        is_terminating = bool(metadata.get("deletionTimestamp"))
        if not finalizers or (metadata["uid"] in self.cleaned_uids and not is_terminating):
            return
        if is_terminating and key == self.desired_state.config_key and UPSTREAM_FINALIZER in finalizers:
            for cluster in self.backend.list_keys(Kind.CLUSTER):
                # Delete by name, because the ManifestWorks of upstream's manager lack the label of the hub.
                self.backend.delete(Kind.WORK, cluster.name, MANIFESTWORK_NAME)
        self.backend.remove_finalizers(*key, finalizers)
        self.cleaned_uids.add(metadata["uid"])
        log.info("obsolete finalizers removed", config=f"{key.namespace}/{key.name}", finalizers=sorted(finalizers))

    def _read_agent_problems(self) -> Mapping[str, str] | None:
        try:
            return self.registrar.list_agent_problems()
        except redis.RedisError:
            # Without a result, the previous condition stays.
            return None


def write_status(
    backend: Backend,
    key: ObjectKey,
    previous_conditions: Sequence[Condition],
    status: DynamicScorerStatus | DynamicScoringConfigStatus,
) -> None:
    """Write the status of an object, and Events about conditions that differ from `previous_conditions`.

    Raises BackendError.
    """
    stored_manifest = backend.get(*key)
    desired_status = status.to_manifest()
    if stored_manifest is None or (stored_manifest.get("status") or {}) == desired_status:
        return
    try:
        backend.update_status(*key, desired_status)
    except ObjectNotFoundError:
        # The object has been deleted since it was read. The deletion triggers its own event.
        return
    previous_states = {condition.type: (condition.status, condition.reason) for condition in previous_conditions}
    events: set[tuple[str, str]] = set()
    for condition in status.conditions:
        is_changed = previous_states.get(condition.type) != (condition.status, condition.reason)
        # Several conditions may have the same cause, which needs only one Event.
        is_changed = is_changed and (condition.reason, condition.message) not in events
        has_event = condition.type != ConditionType.Ready and condition.reason not in _REASONS_WITHOUT_EVENT
        if is_changed and condition.status != "Unknown" and has_event:
            events.add((condition.reason, condition.message))
            is_good = (condition.status == "True") != (condition.type in _BAD_WHEN_TRUE)
            backend.record_event(key, "Normal" if is_good else "Warning", condition.reason, condition.message)
