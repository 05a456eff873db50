"""Reconcilers for clusters. A served cluster gets credentials, a ManifestWork, and entries in the schedule.

A departed cluster loses all of these after a grace period. Without the grace period, a flapping ManagedClusterAddOn,
or a ManagedCluster or configuration that is deleted and created again, would cost clusters their scores, histories
and credentials.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import redis

import dsf.log
from dsf.api.types import ADDON_NAME, MANIFESTWORK_NAME
from dsf.backends.compare import work_contains
from dsf.backends.protocol import Backend, Kind, Manifest, ObjectKey
from dsf.errors import BackendError, DsfError
from dsf.hub.credentials import AgentCredentials
from dsf.hub.desiredstate import DesiredState
from dsf.hub.manifestwork import is_applied, make_manifest_work
from dsf.hub.plan import FleetPlan
from dsf.hub.registrar import Registrar
from dsf.hub.secretdelivery import make_copy
from dsf.process import hubclock
from dsf.store.entries import Entry
from dsf.store.notices import ClusterNotice

log = dsf.log.get(__name__)

#: Maximum seconds that new entries wait for OCM's delivery to the agent. After that an unreachable cluster gets the
#: entries without delivery, and its agent reports an unknown scorer.
MAX_DELIVERY_WAIT: Final = 2.0
#: Key of the DynamicScoringConfig in `Departures`; no cluster has this name.
_CONFIG: Final = "/"


class Departures:
    """Grace periods of absent clusters and of an absent configuration. Thread-safe.

    The periods are in memory only, so a restart of the process restarts every grace period.
    """

    def __init__(self, grace: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`grace` is the grace period in seconds."""
        self._grace = grace
        self._clock = clock
        self._lock = threading.Lock()
        # Start of each grace period by `clock`: the first call of `compute_remaining_seconds`.
        self._started_at_by_name: dict[str, float] = {}

    def compute_remaining_seconds(self, name: str) -> float:
        """Return the remaining seconds of the grace period, which begins at the first call."""
        with self._lock:
            now = self._clock()
            return max(0.0, self._started_at_by_name.setdefault(name, now) + self._grace - now)

    def forget(self, name: str) -> None:
        """End the grace period of a name that is back, or whose data is removed."""
        with self._lock:
            self._started_at_by_name.pop(name, None)


@dataclass(frozen=True)
class DepartedClusters:
    """Reconciler for clusters that the hub does not serve.

    Suspends the scorers of a cluster, and removes its data after the grace period.
    """

    backend: Backend
    registrar: Registrar
    credentials: AgentCredentials
    departures: Departures

    def reconcile(self, cluster: str, plan: FleetPlan) -> float | None:
        """Stop the scorers on the cluster. Returns the seconds until its data is removed, or None if it has no data.

        Raises BackendError and redis.RedisError.
        """
        grace_seconds = self.compute_grace_seconds(cluster)
        redis_error: redis.RedisError | None = None
        has_agent = self._may_have_agent(cluster)
        try:
            if grace_seconds:
                self._pause(cluster, plan, grace_seconds, has_agent=has_agent)
            else:
                self.credentials.withdraw(cluster)
                self.registrar.remove_cluster(cluster)
                self.registrar.notices.forget_cluster(cluster)
                self.departures.forget(cluster)
        except redis.RedisError as error:
            redis_error = error
        delete_work(self.backend, cluster)
        if not (grace_seconds and has_agent):
            self.backend.remove_credentials(cluster)
        if redis_error is not None:
            raise redis_error
        return grace_seconds if grace_seconds and cluster in self.registrar.list_known_clusters() else None

    def compute_grace_seconds(self, cluster: str) -> float:
        """Return the remaining grace seconds of a cluster that is not served; 0 if an administrator has denied it."""
        managed_cluster = self.backend.get(Kind.CLUSTER, "", cluster)
        if managed_cluster is not None and (managed_cluster.get("spec") or {}).get("hubAcceptsClient") is not True:
            # Grant no grace period, because a denied cluster may no longer be trusted.
            return 0.0
        return self.departures.compute_remaining_seconds(cluster)

    def _may_have_agent(self, cluster: str) -> bool:
        """Return True if only the add-on is missing. OCM then waits for no ManifestWork, and credentials may stay."""
        managed_cluster = self.backend.get(Kind.CLUSTER, "", cluster)
        return managed_cluster is not None and not managed_cluster["metadata"].get("deletionTimestamp")

    def _pause(self, cluster: str, plan: FleetPlan, grace_seconds: float, *, has_agent: bool) -> None:
        """Stop all entries of a temporarily absent cluster. Returns without a round trip if the cluster is unknown."""
        if cluster not in self.registrar.list_known_clusters():
            return
        self.credentials.retain(cluster, deliver=has_agent)
        stopped_entries = plan.stop_entries(cluster, self.registrar.get_entries(cluster))
        self.registrar.remove_other_entries(cluster, stopped_entries)
        self.registrar.put_entries(cluster, stopped_entries)
        cause = f"its ManagedClusterAddOn {ADDON_NAME} is gone" if has_agent else "its ManagedCluster is gone"
        grace_end = datetime.fromtimestamp(hubclock.now() + grace_seconds, UTC)
        self.registrar.notices.write_cluster(
            ClusterNotice(
                name=cluster,
                problem=f"{cause}, so nothing runs there; its scores, history and credentials are kept until "
                f"{grace_end:%H:%M} UTC",
            )
        )


def delete_work(backend: Backend, cluster: str) -> None:
    """Delete the ManifestWork with the scorers of a cluster, if it exists."""
    work = backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
    if work is not None and not work["metadata"].get("deletionTimestamp"):
        backend.delete(Kind.WORK, cluster, MANIFESTWORK_NAME)


class _ClusterState(NamedTuple):
    """The state of the delivery to one cluster, since this process started."""

    #: Names of the scorers that the cluster's agent has; None unless the delivery is known to be up to date.
    delivered_scorers: frozenset[str] | None = None
    #: True if this process has reconciled the cluster.
    is_checked: bool = False
    #: Error of the last delivery, empty after a success.
    problem: str = ""
    #: True if the API server rejected the last delivery.
    is_refused: bool = False


class ClusterReconciler:
    """Reconciles a ManagedCluster by key, existing or not."""

    def __init__(
        self,
        backend: Backend,
        registrar: Registrar,
        desired: DesiredState,
        departed: DepartedClusters,
        *,
        agent_namespace: str,
        on_distributed: Callable[[frozenset[str]], None],
    ) -> None:
        """`on_distributed` gets the names of the scorers added to or removed from a cluster."""
        self._backend = backend
        self._registrar = registrar
        self._desired = desired
        self._agent_namespace = agent_namespace
        self._departed = departed
        self._on_distributed = on_distributed
        self._lock = threading.Lock()
        # Cluster -> its state, for clusters that were reconciled since this process started.
        self._states: dict[str, _ClusterState] = {}
        # Clusters whose last run failed or is unfinished.
        self._unfinished_clusters: set[str] = set()
        # Cluster -> time (monotonic clock) at which its new entries stop waiting for delivery.
        self._delivery_deadlines: dict[str, float] = {}

    def reconcile(self, key: ObjectKey) -> float | None:
        """Reconcile one cluster. Raises BackendError and redis.RedisError.

        An error of Redis does not prevent the work on the backend, and vice versa.
        """
        plan = self._desired.plan
        problem, is_refused = "", False
        with self._lock:
            self._unfinished_clusters.add(key.name)
        try:
            reconcile = self._serve_within_limit if key.name in plan.clusters else self._handle_departure
            recheck_seconds = reconcile(key.name, plan)
            with self._lock:
                self._unfinished_clusters.discard(key.name)
            return recheck_seconds
        except BackendError as error:
            problem, is_refused = str(error), error.is_refusal
            raise
        except (DsfError, redis.RedisError):
            raise
        except Exception as error:
            problem = f"the hub cannot go on: {type(error).__name__}; the hub's log says where"
            raise
        finally:
            # Record the outcome even after a failure, because the delivery is then not up to date. Report each changed
            # state, because statuses may wait for the first check of a cluster.
            previous_state, new_state = self._update_state(
                key.name, is_checked=True, problem=problem, is_refused=is_refused
            )
            if previous_state != new_state:
                self._on_distributed(frozenset(scorer.name for scorer in plan.list_running_scorers(key.name)))

    def count_distributed(self, scorer: str) -> int:
        """Return the number of clusters to which this scorer was delivered."""
        return sum(scorer in (state.delivered_scorers or ()) for state in self._copy_states().values())

    def have_checked(self, clusters: Iterable[str]) -> bool:
        """Return True if the counts cover all of these clusters, which is not yet so right after a start."""
        states = self._copy_states()
        return all(cluster in states and states[cluster].is_checked for cluster in clusters)

    def find_problem(self, clusters: Iterable[str]) -> tuple[str, bool]:
        """Return the delivery error of one of these clusters as `<cluster>: <error>`, and True if it was a rejection.

        The text is empty if no delivery has failed.
        """
        states = self._copy_states()
        problem_clusters = [
            (not states[name].is_refused, name) for name in clusters if name in states and states[name].problem
        ]
        if not problem_clusters:
            return "", False
        # Prefer rejections, in a stable order, so that statuses do not change without need.
        _, name = min(problem_clusters)
        return f"{name}: {states[name].problem}", states[name].is_refused

    def list_unfinished_clusters(self) -> frozenset[str]:
        """Return the clusters whose last run failed or is unfinished."""
        with self._lock:
            return frozenset(self._unfinished_clusters)

    def count_up_to_date(self) -> int:
        """Return the number of clusters that are up to date."""
        return sum(state.delivered_scorers is not None for state in self._copy_states().values())

    def _copy_states(self) -> dict[str, _ClusterState]:
        with self._lock:
            return dict(self._states)

    def _update_state(self, cluster: str, **updates: Any) -> tuple[_ClusterState, _ClusterState]:
        """Update the state of a cluster; return the previous state and the new state."""
        with self._lock:
            previous_state = self._states.get(cluster, _ClusterState())
            new_state = self._states[cluster] = previous_state._replace(**updates)
        return previous_state, new_state

    def _serve_within_limit(self, cluster: str, plan: FleetPlan) -> float | None:
        """Call `_serve` with fewer scorers each time the API server rejects the object as too large."""
        while True:
            try:
                return self._serve(cluster, plan)
            except BackendError as error:
                if not self._desired.lower_limit(plan, str(error)):
                    raise
                plan = self._desired.update()
                if cluster not in plan.clusters:
                    # The cluster has departed in the meantime, which triggers its own event.
                    return None

    def _serve(self, cluster: str, plan: FleetPlan) -> float | None:
        """Give a cluster its credentials, ManifestWork and entries; return the seconds until the next check, or None.

        The ManifestWork is applied even if Redis is unreachable. The error of Redis is raised afterwards.
        """
        redis_error: redis.RedisError | None = None
        recheck_seconds: float | None = None
        try:
            # Ensure credentials even without a configuration, because they are the agent's identity. The hub removes
            # credentials only of a cluster that is no longer accepted.
            recheck_seconds = self._departed.credentials.ensure(cluster, plan.clusters[cluster])
            self._departed.departures.forget(cluster)
        except redis.RedisError as error:
            # Continue, because deliveries do not need Redis.
            redis_error = error
        try:
            current_entries = self._registrar.get_entries(cluster)
            entries = plan.make_entries(cluster, current_entries)
            if not self._desired.has_no_config:
                # An unreadable configuration counts as present, so its grace period ends.
                self._departed.departures.forget(_CONFIG)
            if not plan.is_enabled and (grace_seconds := self._departed.departures.compute_remaining_seconds(_CONFIG)):
                entries, recheck_seconds = (
                    plan.stop_entries(cluster, current_entries),
                    min(grace_seconds, recheck_seconds or grace_seconds),
                )
            # Remove entries before the agent forgets the scorer: a tick for an unknown scorer would be a failed cycle.
            self._registrar.remove_other_entries(cluster, entries)
        except redis.RedisError as error:
            redis_error = error
        try:
            has_arrived = self._deliver(cluster, plan)
        except Exception:
            if redis_error is None:
                self._put_delivered_entries(cluster, entries)
            raise
        if redis_error is not None:
            raise redis_error
        # Use the current plan: scorers may have been added since, and scorers outside of the plan are removed.
        self._registrar.sync_scorers(self._desired.plan)
        # Add entries after the ManifestWork, so that the agent knows the scorer before its first tick.
        delivery_delay = self._delay_undelivered(cluster, entries, has_arrived=has_arrived)
        self._registrar.put_entries(cluster, entries)
        self._registrar.notices.write_cluster(plan.make_notice(cluster))
        delays = [seconds for seconds in (delivery_delay, recheck_seconds) if seconds is not None]
        return min(delays, default=None)

    def _put_delivered_entries(self, cluster: str, entries: dict[str, Entry]) -> None:
        """Apply pauses and intervals after a failed delivery, because the agent continues with the delivered scorers.

        New scorers wait for their delivery.
        """
        current_entries = self._registrar.get_entries(cluster)
        delivered_entries = {
            name: entry
            for name, entry in entries.items()
            if name in current_entries and (current_entries[name].is_started or not entry.is_started)
        }
        try:
            self._registrar.put_entries(cluster, delivered_entries)
        except redis.RedisError as error:
            # Do not raise, because the caller raises the delivery error.
            log.warning("changes wait for redis", cluster=cluster, error=str(error))

    def _handle_departure(self, cluster: str, plan: FleetPlan) -> float | None:
        self._delivery_deadlines.pop(cluster, None)
        self._record_delivery(cluster, None)
        return self._departed.reconcile(cluster, plan)

    def _delay_undelivered(self, cluster: str, entries: dict[str, Entry], *, has_arrived: bool) -> float | None:
        """Stop or remove the `entries` that would start before the delivery to the agent.

        Returns the seconds until they start regardless, or None if no entry waits. A delivery triggers an event about
        the ManifestWork, so that the entries start earlier.
        """
        current_entries = self._registrar.get_entries(cluster)
        starting_scorers = [
            name
            for name, entry in entries.items()
            if entry.is_started and (name not in current_entries or not current_entries[name].is_started)
        ]
        if has_arrived or not starting_scorers:
            self._delivery_deadlines.pop(cluster, None)
            return None
        now = time.monotonic()
        delivery_delay = self._delivery_deadlines.setdefault(cluster, now + MAX_DELIVERY_WAIT) - now
        if delivery_delay <= 0:
            # Keep the expired deadline, so that the entries do not wait a second time.
            return None
        for name in starting_scorers:
            if name in current_entries:
                # Stop the entry, so that it gets no tick even if an override resumes the scorer.
                entries[name] = entries[name].make_stopped()
            else:
                del entries[name]
        return delivery_delay

    def _deliver(self, cluster: str, plan: FleetPlan) -> bool:
        """Apply the ManifestWork; return True if the agent has received it."""
        if not plan.is_enabled:
            delete_work(self._backend, cluster)
            self._record_delivery(cluster, None)
            return False
        running_scorers = plan.list_running_scorers(cluster)
        desired_work = make_manifest_work(
            cluster,
            self._agent_namespace,
            [scorer.get_part(cluster) for scorer in running_scorers],
            secrets=self._copy_secrets(plan.list_delivered_secrets(cluster)),
        )
        work = self._backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
        if work is None or not work_contains(work, desired_work):
            if work is None:
                # Record the loss before the write, which may fail, for example in a namespace that is being deleted.
                self._record_delivery(cluster, None)
            self._backend.apply(desired_work)
            work = self._backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
        has_arrived = work is not None and is_applied(work) and work_contains(work, desired_work)
        if work is not None and work["metadata"].get("deletionTimestamp"):
            # Count a ManifestWork that is being deleted as missing; it is created again later.
            has_arrived = False
        self._record_delivery(cluster, frozenset(scorer.name for scorer in running_scorers) if has_arrived else None)
        return has_arrived

    def _copy_secrets(self, names: Mapping[str, str]) -> list[Manifest]:
        """Return the copies of Secrets for a cluster; `names` maps the name on the cluster to the name on the hub."""
        namespace = self._desired.config_key.namespace
        secrets = ((target, self._backend.get(Kind.SECRET, namespace, name)) for target, name in sorted(names.items()))
        # Skip deleted Secrets: their deletion triggers an event, after which the plan no longer contains them.
        return [make_copy(self._agent_namespace, secret, target) for target, secret in secrets if secret is not None]

    def _record_delivery(self, cluster: str, names: frozenset[str] | None) -> None:
        previous_state, _ = self._update_state(cluster, delivered_scorers=names)
        if previous_state.delivered_scorers != names:
            self._on_distributed((previous_state.delivered_scorers or frozenset()) ^ (names or frozenset()))
