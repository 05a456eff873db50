"""One cluster: its agent's credentials, its ManifestWork, its entries in the schedule."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import redis

from dsf.api.types import MANIFESTWORK_NAME
from dsf.hub.backend import Backend, Kind, ObjectKey
from dsf.hub.controller import DONE, Result
from dsf.hub.distribute import covers, is_applied, manifest_work
from dsf.hub.publish import Publisher
from dsf.hub.summaries import Plan
from dsf.hub.view import View
from dsf.messages import derive_key
from dsf.store.entries import Entry
from dsf.store.registry import ClusterRecord

#: Longest time in seconds that new entries wait for OCM to bring the agent what they need. A cluster that is away gets
#: them after this; its agent knows nothing of them for longer, and says so.
HOLD: Final = 2.0
#: Id of the signing keys in force.
KEY_ID: Final = 1


class ClusterReconciler:
    """Called with the key of a ManagedCluster, whether it exists or not."""

    def __init__(
        self,
        backend: Backend,
        publisher: Publisher,
        view: View,
        *,
        agent_namespace: str,
        master_secret: bytes,
        on_distributed: Callable[[frozenset[str]], None],
    ) -> None:
        """`on_distributed` gets the names of the scorers that arrived on a cluster or left it."""
        self._backend = backend
        self._publisher = publisher
        self._view = view
        self._agent_namespace = agent_namespace
        self._master_secret = master_secret
        self._on_distributed = on_distributed
        self._lock = threading.Lock()
        # Cluster -> scorers that its agent was told of; without an item where that is not known to be up to date.
        self._distributed: dict[str, frozenset[str]] = {}
        # Clusters that were looked at since this process began.
        self._looked_at: set[str] = set()
        # Cluster -> until when (monotonic clock) its new entries wait.
        self._held: dict[str, float] = {}

    def __call__(self, key: ObjectKey) -> Result:
        """Raises BackendError and redis.RedisError; one does not keep the other's work from being done."""
        plan = self._view.plan()
        try:
            if key.name in plan.clusters:
                return self._serve(key.name, plan)
            self._leave(key.name)
            return DONE
        finally:
            # Also when it failed: then what was delivered is known not to be up to date.
            self._note_look(key.name, plan)

    def distributed(self, scorer: str) -> int:
        """On how many clusters the agent was told of this scorer."""
        with self._lock:
            return sum(scorer in names for names in self._distributed.values())

    def have_looked_at(self, clusters: Iterable[str]) -> bool:
        """Whether the numbers tell about all of these clusters; after a start they do not at first."""
        with self._lock:
            return self._looked_at.issuperset(clusters)

    def up_to_date(self) -> int:
        """How many clusters have what they should have."""
        with self._lock:
            return len(self._distributed)

    def _serve(self, cluster: str, plan: Plan) -> Result:
        # Also while there is no configuration: the key says who the agent is, not what it does. It goes when the
        # cluster is not accepted any more.
        self._backend.deliver_credentials(cluster, derive_key(self._master_secret, cluster, KEY_ID).dump())
        unreachable: redis.RedisError | None = None
        try:
            wanted = plan.entries(cluster, self._publisher.present(cluster))
            # Before the agent forgets the scorer: a tick for something it does not know would be a failed cycle.
            self._publisher.remove_other_entries(cluster, wanted)
        except redis.RedisError as error:
            unreachable = error
        has_arrived = self._distribute(cluster, plan)
        if unreachable is not None:
            raise unreachable
        self._publisher.sync_scorers(plan)
        self._publisher.put_cluster(ClusterRecord(name=cluster, uid=plan.clusters[cluster], key_ids=(KEY_ID,)))
        # After the ManifestWork, for the same reason.
        wait = self._hold(cluster, wanted, has_arrived=has_arrived)
        self._publisher.put_entries(cluster, wanted)
        return DONE if wait is None else Result(wait)

    def _leave(self, cluster: str) -> None:
        """The cluster is gone or not accepted: take away all that was made for it."""
        unreachable: redis.RedisError | None = None
        try:
            self._publisher.remove_cluster(cluster)
        except redis.RedisError as error:
            unreachable = error
        self._held.pop(cluster, None)
        self._delete_work(cluster)
        self._backend.remove_credentials(cluster)
        self._note(cluster, None)
        if unreachable is not None:
            raise unreachable

    def _hold(self, cluster: str, wanted: dict[str, Entry], *, has_arrived: bool) -> float | None:
        """Take entries out of `wanted` that begin before the agent knows of them; returns the seconds until they are
        wanted all the same, None when there are none. The arrival is told as a change of the ManifestWork.
        """
        present = self._publisher.present(cluster)
        begins = [
            name
            for name, entry in wanted.items()
            if not entry.suspended and (name not in present or present[name].suspended)
        ]
        if has_arrived or not begins:
            self._held.pop(cluster, None)
            return None
        now = time.monotonic()
        wait = self._held.setdefault(cluster, now + HOLD) - now
        if wait <= 0:
            # Kept: until it arrives or nothing begins any more, nothing waits a second time.
            return None
        for name in begins:
            if name in present:
                wanted[name] = wanted[name].model_copy(update={"suspended": True, "suspended_until": None})
            else:
                del wanted[name]
        return wait

    def _distribute(self, cluster: str, plan: Plan) -> bool:
        """Bring the ManifestWork about; says whether the agent has what it says."""
        if not plan.is_enabled:
            self._delete_work(cluster)
            self._note(cluster, None)
            return False
        running = plan.running(cluster)
        wanted = manifest_work(cluster, self._agent_namespace, plan.summaries(cluster))
        work = self._backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
        if work is None or not covers(work, wanted):
            self._backend.apply(wanted)
            work = self._backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
        has_arrived = work is not None and covers(work, wanted) and is_applied(work)
        self._note(cluster, frozenset(scorer.name for scorer in running) if has_arrived else None)
        return has_arrived

    def _delete_work(self, cluster: str) -> None:
        work = self._backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
        if work is not None and not work["metadata"].get("deletionTimestamp"):
            self._backend.delete(Kind.WORK, cluster, MANIFESTWORK_NAME)

    def _note_look(self, cluster: str, plan: Plan) -> None:
        with self._lock:
            if cluster in self._looked_at:
                return
            self._looked_at.add(cluster)
        # Statuses may have waited for this look although it changed nothing.
        self._on_distributed(frozenset(scorer.name for scorer in plan.running(cluster)))

    def _note(self, cluster: str, names: frozenset[str] | None) -> None:
        with self._lock:
            before = self._distributed.pop(cluster, None)
            if names is not None:
                self._distributed[cluster] = names
        if before != names:
            self._on_distributed((before or frozenset()) ^ (names or frozenset()))
