"""The reconcilers of a cluster. A served one gets credentials, its ManifestWork and entries in the schedule.

A departed one loses them after a grace period: a ManagedClusterAddOn that flaps, or a ManagedCluster or configuration
that is deleted and made again, would otherwise cost clusters their scores, histories and credentials.
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
from dsf.backends.compare import carries
from dsf.backends.protocol import Backend, Kind, Manifest, ObjectKey
from dsf.errors import BackendError, DsfError
from dsf.hub.credentials import AgentCredentials
from dsf.hub.desiredstate import DesiredState
from dsf.hub.manifestwork import is_applied, manifest_work
from dsf.hub.plan import FleetPlan
from dsf.hub.registrar import Registrar
from dsf.hub.secretdelivery import copy_for
from dsf.process import hubclock
from dsf.store.entries import Entry
from dsf.store.notices import ClusterNotice

log = dsf.log.get(__name__)

#: Longest time in seconds that new entries wait for OCM's delivery to the agent. An unreachable cluster gets them after
#: this; its agent then reports an unknown scorer.
MAX_DELIVERY_WAIT: Final = 2.0
#: Stands for the DynamicScoringConfig among clusters that are gone: no cluster has this name.
_CONFIG: Final = "/"


class Departures:
    """Names that are absent, with the time since when. In memory: a restart restarts every grace period.
    Thread-safe."""

    def __init__(self, grace: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`grace` in seconds."""
        self._grace = grace
        self._clock = clock
        self._lock = threading.Lock()
        self._since: dict[str, float] = {}

    def left(self, name: str) -> float:
        """Seconds for which this is still kept; the first call begins its grace."""
        with self._lock:
            now = self._clock()
            return max(0.0, self._since.setdefault(name, now) + self._grace - now)

    def forget(self, name: str) -> None:
        """Forget a name that is back, or of which everything is removed."""
        with self._lock:
            self._since.pop(name, None)


@dataclass(frozen=True)
class DepartedClusters:
    """Clusters that the hub does not serve: what they have is suspended until their grace is over, then removed."""

    backend: Backend
    registrar: Registrar
    credentials: AgentCredentials
    departures: Departures

    def reconcile(self, cluster: str, plan: FleetPlan) -> float | None:
        """Stop what runs on the cluster. Returns the seconds until all of it is removed; None if it is already.

        Raises BackendError and redis.RedisError.
        """
        grace_seconds = self.grace_of(cluster)
        unreachable: redis.RedisError | None = None
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
            unreachable = error
        delete_work(self.backend, cluster)
        if not (grace_seconds and has_agent):
            self.backend.remove_credentials(cluster)
        if unreachable is not None:
            raise unreachable
        return grace_seconds if grace_seconds and cluster in self.registrar.known_clusters() else None

    def grace_of(self, cluster: str) -> float:
        """Seconds for which a cluster without the hub's service is still kept; 0 if it is refused."""
        managed_cluster = self.backend.get(Kind.CLUSTER, "", cluster)
        if managed_cluster is not None and (managed_cluster.get("spec") or {}).get("hubAcceptsClient") is not True:
            # A person's decision, perhaps about a cluster that is not trusted any more.
            return 0.0
        return self.departures.left(cluster)

    def _may_have_agent(self, cluster: str) -> bool:
        """True if only the add-on is missing: OCM waits for no ManifestWork then, and the credentials may stay."""
        managed_cluster = self.backend.get(Kind.CLUSTER, "", cluster)
        return managed_cluster is not None and not managed_cluster["metadata"].get("deletionTimestamp")

    def _pause(self, cluster: str, plan: FleetPlan, grace_seconds: float, *, has_agent: bool) -> None:
        """Run nothing on a cluster that is gone for a moment. Costs nothing for an unknown one."""
        if cluster not in self.registrar.known_clusters():
            return
        self.credentials.keep(cluster, deliver=has_agent)
        stopped = plan.stopped(cluster, self.registrar.present(cluster))
        self.registrar.remove_other_entries(cluster, stopped)
        self.registrar.put_entries(cluster, stopped)
        what = f"its ManagedClusterAddOn {ADDON_NAME} is gone" if has_agent else "its ManagedCluster is gone"
        until = datetime.fromtimestamp(hubclock.now() + grace_seconds, UTC)
        self.registrar.notices.write_cluster(
            ClusterNotice(
                name=cluster,
                problem=f"{what}, so nothing runs there; its scores, history and credentials are kept until "
                f"{until:%H:%M} UTC",
            )
        )


def delete_work(backend: Backend, cluster: str) -> None:
    """Delete the ManifestWork with a cluster's scorers, if there is one."""
    work = backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
    if work is not None and not work["metadata"].get("deletionTimestamp"):
        backend.delete(Kind.WORK, cluster, MANIFESTWORK_NAME)


class _ClusterState(NamedTuple):
    """State of a cluster since this process started."""

    #: Scorers delivered to its agent; None if not known to be up to date.
    delivered: frozenset[str] | None = None
    is_checked: bool = False
    #: Why delivery failed, and whether that was a refusal; empty if it did not.
    problem: str = ""
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
        # Clusters reconciled since this process started.
        self._states: dict[str, _ClusterState] = {}
        # The ones whose last run failed or is unfinished.
        self._unsettled: set[str] = set()
        # Cluster -> end (monotonic clock) of its new entries' wait.
        self._held: dict[str, float] = {}

    def reconcile(self, key: ObjectKey) -> float | None:
        """Raises BackendError and redis.RedisError; a failure of one does not prevent the other's work."""
        plan = self._desired.plan
        problem, is_refused = "", False
        with self._lock:
            self._unsettled.add(key.name)
        try:
            reconcile = self._serve_what_fits if key.name in plan.clusters else self._leave
            recheck_after = reconcile(key.name, plan)
            with self._lock:
                self._unsettled.discard(key.name)
            return recheck_after
        except BackendError as error:
            problem, is_refused = str(error), error.is_refusal
            raise
        except (DsfError, redis.RedisError):
            raise
        except Exception as error:
            problem = f"the hub cannot go on: {type(error).__name__}; the hub's log says where"
            raise
        finally:
            # Also after a failure: the delivery is then not up to date. Statuses may have waited for the first
            # check, although it changed nothing.
            before, after = self._note(key.name, is_checked=True, problem=problem, is_refused=is_refused)
            if before != after:
                self._on_distributed(frozenset(scorer.name for scorer in plan.running(key.name)))

    def distributed(self, scorer: str) -> int:
        """Number of clusters that this scorer was delivered to."""
        return sum(scorer in (row.delivered or ()) for row in self._rows().values())

    def have_looked_at(self, clusters: Iterable[str]) -> bool:
        """True if the counts cover all of these clusters; not yet right after a start."""
        rows = self._rows()
        return all(cluster in rows and rows[cluster].is_checked for cluster in clusters)

    def problem(self, clusters: Iterable[str]) -> tuple[str, bool]:
        """Why delivery to one of these clusters failed, `<cluster>: <error>`, and whether that was a refusal."""
        rows = self._rows()
        problem_clusters = [
            (not rows[name].is_refused, name) for name in clusters if name in rows and rows[name].problem
        ]
        if not problem_clusters:
            return "", False
        # Refusals first, in stable order: a status must not change without need.
        _, name = min(problem_clusters)
        return f"{name}: {rows[name].problem}", rows[name].is_refused

    def unsettled(self) -> frozenset[str]:
        """Clusters whose last run failed or is unfinished."""
        with self._lock:
            return frozenset(self._unsettled)

    def up_to_date(self) -> int:
        """Number of clusters that are up to date."""
        return sum(row.delivered is not None for row in self._rows().values())

    def _rows(self) -> dict[str, _ClusterState]:
        with self._lock:
            return dict(self._states)

    def _note(self, cluster: str, **facts: Any) -> tuple[_ClusterState, _ClusterState]:
        """Note facts about a cluster; returns what was known before and what is now."""
        with self._lock:
            before = self._states.get(cluster, _ClusterState())
            after = self._states[cluster] = before._replace(**facts)
        return before, after

    def _serve_what_fits(self, cluster: str, plan: FleetPlan) -> float | None:
        """Call `_serve` with fewer scorers each time the API server rejects the object as too large."""
        while True:
            try:
                return self._serve(cluster, plan)
            except BackendError as error:
                if not self._desired.lower_limit(plan, str(error)):
                    raise
                plan = self._desired.update()
                if cluster not in plan.clusters:
                    # The cluster left meanwhile, which triggers its own event.
                    return None

    def _serve(self, cluster: str, plan: FleetPlan) -> float | None:
        unreachable: redis.RedisError | None = None
        recheck_after: float | None = None
        try:
            # Credentials are ensured without a configuration too: they are the agent's identity, not its work. They are
            # removed when the cluster is no longer accepted.
            recheck_after = self._departed.credentials.ensure(cluster, plan.clusters[cluster])
            self._departed.departures.forget(cluster)
        except redis.RedisError as error:
            # Deliveries without Redis are done.
            unreachable = error
        try:
            present = self._registrar.present(cluster)
            entries = plan.entries(cluster, present)
            if not self._desired.has_no_config:
                # An unreadable configuration is not absent: each check restarts its grace period.
                self._departed.departures.forget(_CONFIG)
            if not plan.is_enabled and (grace_seconds := self._departed.departures.left(_CONFIG)):
                entries, recheck_after = (
                    plan.stopped(cluster, present),
                    min(grace_seconds, recheck_after or grace_seconds),
                )
            # Before the agent forgets the scorer: a tick for an unknown scorer would be a failed cycle.
            self._registrar.remove_other_entries(cluster, entries)
        except redis.RedisError as error:
            unreachable = error
        try:
            has_arrived = self._distribute(cluster, plan)
        except Exception:
            if unreachable is None:
                self._put_known(cluster, entries)
            raise
        if unreachable is not None:
            raise unreachable
        # With the current plan: scorers may have been added since, and those not in it are removed.
        self._registrar.sync_scorers(self._desired.plan)
        # After the ManifestWork for the same reason.
        wait = self._delay_undelivered(cluster, entries, has_arrived=has_arrived)
        self._registrar.put_entries(cluster, entries)
        self._registrar.notices.write_cluster(plan.notice(cluster))
        waits = [seconds for seconds in (wait, recheck_after) if seconds is not None]
        return min(waits, default=None)

    def _put_known(self, cluster: str, entries: dict[str, Entry]) -> None:
        """Apply pauses and intervals although delivery to the agent fails: it continues with the scorers that it knows.
        New scorers wait for delivery."""
        present = self._registrar.present(cluster)
        delivered_entries = {
            name: entry
            for name, entry in entries.items()
            if name in present and (present[name].is_started or not entry.is_started)
        }
        try:
            self._registrar.put_entries(cluster, delivered_entries)
        except redis.RedisError as error:
            # The delivery error is the one to report.
            log.warning("changes wait for redis", cluster=cluster, error=str(error))

    def _leave(self, cluster: str, plan: FleetPlan) -> float | None:
        self._held.pop(cluster, None)
        self._note_delivery(cluster, None)
        return self._departed.reconcile(cluster, plan)

    def _delay_undelivered(self, cluster: str, entries: dict[str, Entry], *, has_arrived: bool) -> float | None:
        """Take entries out of `entries` that would start before delivery to the agent; returns the seconds until they
        start regardless, None if there are none. Delivery shows as a change of the ManifestWork."""
        present = self._registrar.present(cluster)
        begins = [
            name
            for name, entry in entries.items()
            if entry.is_started and (name not in present or not present[name].is_started)
        ]
        if has_arrived or not begins:
            self._held.pop(cluster, None)
            return None
        now = time.monotonic()
        wait = self._held.setdefault(cluster, now + MAX_DELIVERY_WAIT) - now
        if wait <= 0:
            # Kept: no second wait until delivery, or until no entry is new.
            return None
        for name in begins:
            if name in present:
                # Even an override "not paused" must not send the tick.
                entries[name] = entries[name].stopped()
            else:
                del entries[name]
        return wait

    def _distribute(self, cluster: str, plan: FleetPlan) -> bool:
        """Apply the ManifestWork; returns whether the agent has received it."""
        if not plan.is_enabled:
            delete_work(self._backend, cluster)
            self._note_delivery(cluster, None)
            return False
        running = plan.running(cluster)
        desired_work = manifest_work(
            cluster,
            self._agent_namespace,
            [scorer.part_on(cluster) for scorer in running],
            secrets=self._secrets(plan.delivered(cluster)),
        )
        work = self._backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
        if work is None or not carries(work, desired_work):
            if work is None:
                # Noted before the write, which may fail, as in a namespace that is being deleted.
                self._note_delivery(cluster, None)
            self._backend.apply(desired_work)
            work = self._backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
        has_arrived = work is not None and is_applied(work) and carries(work, desired_work)
        if work is not None and work["metadata"].get("deletionTimestamp"):
            # An earlier one: deleted first, then created again.
            has_arrived = False
        self._note_delivery(cluster, frozenset(scorer.name for scorer in running) if has_arrived else None)
        return has_arrived

    def _secrets(self, names: Mapping[str, str]) -> list[Manifest]:
        """The hub's Secrets as delivered to a cluster: name there -> name on the hub."""
        namespace = self._desired.config_key.namespace
        # A Secret deleted just now will trigger an event, and then leave the plan.
        secrets = ((there, self._backend.get(Kind.SECRET, namespace, name)) for there, name in sorted(names.items()))
        return [copy_for(self._agent_namespace, secret, there) for there, secret in secrets if secret is not None]

    def _note_delivery(self, cluster: str, names: frozenset[str] | None) -> None:
        before, _ = self._note(cluster, delivered=names)
        if before.delivered != names:
            self._on_distributed((before.delivered or frozenset()) ^ (names or frozenset()))
