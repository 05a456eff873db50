"""Absent objects, and how long their data is kept for their return.

A ManagedClusterAddOn that flaps, a ManagedCluster or a configuration that is deleted and made again would otherwise
cost all clusters their scores, histories and credentials.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import redis

from dsf.api.types import ADDON_NAME, MANIFESTWORK_NAME
from dsf.backends.protocol import Backend, Kind
from dsf.hub.credentials import AgentCredentials
from dsf.hub.registrar import Registrar
from dsf.hub.summaries import FleetPlan
from dsf.process import hubclock
from dsf.store.notices import ClusterNotice


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

    def __call__(self, cluster: str, plan: FleetPlan) -> float | None:
        """Stop what runs on the cluster. Returns the seconds until all of it is removed; None if it is already.

        Raises BackendError and redis.RedisError.
        """
        left = self.grace_of(cluster)
        unreachable: redis.RedisError | None = None
        has_agent = self._may_have_agent(cluster)
        try:
            if left:
                self._pause(cluster, plan, left, has_agent=has_agent)
            else:
                self.credentials.withdraw(cluster)
                self.registrar.remove_cluster(cluster)
                self.registrar.notices.forget_cluster(cluster)
                self.departures.forget(cluster)
        except redis.RedisError as error:
            unreachable = error
        delete_work(self.backend, cluster)
        if not (left and has_agent):
            self.backend.remove_credentials(cluster)
        if unreachable is not None:
            raise unreachable
        return left if left and cluster in self.registrar.known_clusters() else None

    def grace_of(self, cluster: str) -> float:
        """Seconds for which a cluster without the hub's service is still kept; 0 if it is refused."""
        managed_cluster = self.backend.get(Kind.CLUSTER, "", cluster)
        if managed_cluster is not None and (managed_cluster.get("spec") or {}).get("hubAcceptsClient") is not True:
            # A person's decision, perhaps about a cluster that is not trusted any more.
            return 0.0
        return self.departures.left(cluster)

    def _may_have_agent(self, cluster: str) -> bool:
        """Whether only the add-on is missing: OCM waits for no ManifestWork then, and the credentials may stay."""
        managed_cluster = self.backend.get(Kind.CLUSTER, "", cluster)
        return managed_cluster is not None and not managed_cluster["metadata"].get("deletionTimestamp")

    def _pause(self, cluster: str, plan: FleetPlan, left: float, *, has_agent: bool) -> None:
        """Run nothing on a cluster that is gone for a moment. Costs nothing for an unknown one."""
        if cluster not in self.registrar.known_clusters():
            return
        self.credentials.keep(cluster, deliver=has_agent)
        stopped = plan.stopped(cluster, self.registrar.present(cluster))
        self.registrar.remove_other_entries(cluster, stopped)
        self.registrar.put_entries(cluster, stopped)
        what = f"its ManagedClusterAddOn {ADDON_NAME} is gone" if has_agent else "its ManagedCluster is gone"
        until = datetime.fromtimestamp(hubclock.now() + left, UTC)
        self.registrar.notices.tell_cluster(
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
