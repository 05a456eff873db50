"""One cluster: its agent's credentials, its ManifestWork, its entries in the schedule."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
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
from dsf.store.registry import ClusterRecord

#: Seconds after which a cluster's credentials are delivered again, in case somebody removed them.
CREDENTIALS_REFRESH: Final = 600.0
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
        # Cluster -> when its credentials are delivered again (monotonic clock); None: they were removed.
        self._credentials: dict[str, float | None] = {}

    def __call__(self, key: ObjectKey) -> Result:
        """Raises BackendError and redis.RedisError; one does not keep the other's work from being done."""
        plan = self._view.plan()
        if key.name in plan.clusters:
            self._serve(key.name, plan)
        else:
            self._leave(key.name)
        return DONE

    def distributed(self, scorer: str) -> int:
        """On how many clusters the agent was told of this scorer."""
        with self._lock:
            return sum(scorer in names for names in self._distributed.values())

    def up_to_date(self) -> int:
        """How many clusters have what they should have."""
        with self._lock:
            return len(self._distributed)

    def _serve(self, cluster: str, plan: Plan) -> None:
        self._deliver_credentials(cluster)
        unreachable: redis.RedisError | None = None
        try:
            wanted = plan.entries(cluster, self._publisher.present(cluster))
            # Before the agent forgets the scorer: a tick for something it does not know would be a failed cycle.
            self._publisher.remove_other_entries(cluster, wanted)
        except redis.RedisError as error:
            unreachable = error
        self._distribute(cluster, plan)
        if unreachable is not None:
            raise unreachable
        self._publisher.sync_scorers(plan)
        self._publisher.put_cluster(ClusterRecord(name=cluster, uid=plan.clusters[cluster], key_ids=(KEY_ID,)))
        # After the ManifestWork, for the same reason.
        self._publisher.put_entries(cluster, wanted)

    def _leave(self, cluster: str) -> None:
        """The cluster is gone or not accepted: take away all that was made for it."""
        unreachable: redis.RedisError | None = None
        try:
            self._publisher.remove_cluster(cluster)
        except redis.RedisError as error:
            unreachable = error
        self._delete_work(cluster)
        if self._credentials.get(cluster, 0.0) is not None:
            self._backend.remove_credentials(cluster)
            self._credentials[cluster] = None
        self._note(cluster, None)
        if unreachable is not None:
            raise unreachable

    def _deliver_credentials(self, cluster: str) -> None:
        now = time.monotonic()
        if now < (self._credentials.get(cluster) or 0.0):
            return
        self._backend.deliver_credentials(cluster, derive_key(self._master_secret, cluster, KEY_ID).dump())
        self._credentials[cluster] = now + CREDENTIALS_REFRESH

    def _distribute(self, cluster: str, plan: Plan) -> None:
        if not plan.is_enabled:
            self._delete_work(cluster)
            self._note(cluster, None)
            return
        running = plan.running(cluster)
        wanted = manifest_work(cluster, self._agent_namespace, plan.summaries(cluster))
        work = self._backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
        if work is None or not covers(work, wanted):
            self._backend.apply(wanted)
            work = self._backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
        has_arrived = work is not None and covers(work, wanted) and is_applied(work)
        self._note(cluster, frozenset(scorer.name for scorer in running) if has_arrived else None)

    def _delete_work(self, cluster: str) -> None:
        work = self._backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
        if work is not None and not work["metadata"].get("deletionTimestamp"):
            self._backend.delete(Kind.WORK, cluster, MANIFESTWORK_NAME)

    def _note(self, cluster: str, names: frozenset[str] | None) -> None:
        with self._lock:
            before = self._distributed.pop(cluster, None)
            if names is not None:
                self._distributed[cluster] = names
        if before != names:
            self._on_distributed((before or frozenset()) ^ (names or frozenset()))
