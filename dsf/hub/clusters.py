"""One cluster: its agent's credentials, its ManifestWork, its entries in the schedule."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import redis

import dsf.log
from dsf.api.summary import ScorerSummary, dump_summaries
from dsf.api.types import CELL_LABEL, CREDENTIALS_WORK_NAME, MANIFESTWORK_NAME
from dsf.backends.protocol import Backend, Kind, Manifest, ObjectKey
from dsf.errors import BackendError, DsfError
from dsf.hub.credentials import AgentCredentials
from dsf.hub.desiredstate import DesiredState
from dsf.hub.distribute import carries, is_applied, manifest_work
from dsf.hub.registrar import Registrar
from dsf.hub.secretdelivery import copy_for
from dsf.hub.summaries import Plan, ScorerPlan
from dsf.store.entries import Entry

log = dsf.log.get(__name__)

#: Longest time in seconds that new entries wait for OCM to bring the agent what they need. A cluster that is away gets
#: them after this; its agent knows nothing of them for longer, and says so.
HOLD: Final = 2.0


class ClusterReconciler:
    """Called with the key of a ManagedCluster, whether it exists or not."""

    def __init__(
        self,
        backend: Backend,
        registrar: Registrar,
        desired: DesiredState,
        *,
        credentials: AgentCredentials,
        agent_namespace: str,
        redis_url: str = "",
        on_distributed: Callable[[frozenset[str]], None],
    ) -> None:
        """`on_distributed` gets the names of the scorers that arrived on a cluster or left it; `redis_url` is what
        agents are told of where Redis is."""
        self._backend = backend
        self._registrar = registrar
        self._desired = desired
        self._agent_namespace = agent_namespace
        self._redis_url = redis_url
        self._credentials = credentials
        self._on_distributed = on_distributed
        self._lock = threading.Lock()
        # Cluster -> scorers that its agent was told of; without an item where that is not known to be up to date.
        self._distributed: dict[str, frozenset[str]] = {}
        # Clusters that were looked at since this process began.
        self._looked_at: set[str] = set()
        # Cluster -> why it could not be told what to run, and whether that was a refusal.
        self._problems: dict[str, tuple[str, bool]] = {}
        # A plan, and the texts of summaries by the names of scorers that run.
        self._texts: tuple[Plan, dict[tuple[str, ...], str]] = Plan(), {}
        # Clusters whose last look failed.
        self._unsettled: set[str] = set()
        # Cluster -> until when (monotonic clock) its new entries wait.
        self._held: dict[str, float] = {}
        # Clusters that this process has served: another cell that takes one over since then has read a newer rule.
        self._served: set[str] = set()
        # Clusters of the plan that another cell has taken over.
        self._let_go: set[str] = set()

    def __call__(self, key: ObjectKey) -> float | None:
        """Raises BackendError and redis.RedisError; one does not keep the other's work from being done."""
        plan = self._desired.update()
        problem: tuple[str, bool] | None = None
        with self._lock:
            self._unsettled.add(key.name)
        try:
            look: float | None = None
            elsewhere = self._elsewhere(key.name, plan)
            with self._lock:
                (self._let_go.add if elsewhere and key.name in plan.clusters else self._let_go.discard)(key.name)
            if key.name in plan.clusters and not elsewhere:
                look = self._serve(key.name, plan)
                self._served.add(key.name)
            else:
                self._leave(key.name, elsewhere)
            with self._lock:
                self._unsettled.discard(key.name)
            return look
        except BackendError as error:
            problem = str(error), error.is_refusal
            raise
        except (DsfError, redis.RedisError):
            raise
        except Exception as error:
            problem = f"the hub cannot go on: {type(error).__name__}; the hub's log says where", False
            raise
        finally:
            self._note_problem(key.name, plan, problem)
            # Also when it failed: then what was delivered is known not to be up to date.
            self._note_look(key.name, plan)

    def distributed(self, scorer: str) -> int:
        """On how many clusters the agent was told of this scorer."""
        with self._lock:
            return sum(scorer in names for names in self._distributed.values())

    def kept(self, clusters: Iterable[str]) -> list[str]:
        """Without those that another cell took over, whose list is a newer one: they count there."""
        with self._lock:
            return [name for name in clusters if name not in self._let_go]

    def have_looked_at(self, clusters: Iterable[str]) -> bool:
        """Whether the numbers tell about all of these clusters; after a start they do not at first."""
        with self._lock:
            return self._looked_at.issuperset(clusters)

    def problem(self, clusters: Iterable[str]) -> tuple[str, bool]:
        """Why one of these clusters could not be told, `<cluster>: <error>`, and whether that was a refusal."""
        with self._lock:
            found = [(name, *self._problems[name]) for name in clusters if name in self._problems]
        if not found:
            return "", False
        # Refusals first, and always the same one of many: a status must not change without need.
        name, text, is_refused = min(found, key=lambda problem: (not problem[2], problem[0]))
        return f"{name}: {text}", is_refused

    def unsettled(self) -> set[str]:
        """Clusters whose last look failed, or has not ended."""
        with self._lock:
            return set(self._unsettled)

    def up_to_date(self) -> int:
        """How many clusters have what they should have."""
        with self._lock:
            return len(self._distributed)

    def _serve(self, cluster: str, plan: Plan) -> float | None:
        unreachable: redis.RedisError | None = None
        look: float | None = None
        try:
            # Also while there is no configuration: credentials say who the agent is, not what it does. They go when
            # the cluster is not accepted any more.
            look = self._credentials.ensure(cluster, plan.clusters[cluster])
        except redis.RedisError as error:
            # What can be delivered without Redis has been.
            unreachable = error
        try:
            wanted = plan.entries(cluster, self._registrar.present(cluster))
            # Before the agent forgets the scorer: a tick for something it does not know would be a failed cycle.
            self._registrar.remove_other_entries(cluster, wanted)
        except redis.RedisError as error:
            unreachable = error
        try:
            has_arrived = self._distribute(cluster, plan)
        except Exception:
            if unreachable is None:
                self._put_known(cluster, wanted)
            raise
        if unreachable is not None:
            raise unreachable
        # As they are now: since the plan was made, others may have come, and what is not in it is forgotten.
        self._registrar.sync_scorers(self._desired.update())
        # After the ManifestWork, for the same reason.
        wait = self._hold(cluster, wanted, has_arrived=has_arrived)
        self._registrar.put_entries(cluster, wanted)
        self._registrar.notices.tell_cluster(plan.notice(cluster))
        waits = [seconds for seconds in (wait, look) if seconds is not None]
        return min(waits, default=None)

    def _put_known(self, cluster: str, wanted: dict[str, Entry]) -> None:
        """Bring pauses and intervals into force although the agent cannot be told anything: it goes on with the scorers
        that it knows. What begins waits until it is told.
        """
        present = self._registrar.present(cluster)
        known = {
            name: entry
            for name, entry in wanted.items()
            if name in present and (entry.suspended or not present[name].suspended)
        }
        try:
            self._registrar.put_entries(cluster, known)
        except redis.RedisError as error:
            # Why the agent cannot be told is what people must know.
            log.warning("changes wait for redis", cluster=cluster, error=str(error))

    def _elsewhere(self, cluster: str, plan: Plan) -> str:
        """The other cell that has this cluster; empty where it is ours."""
        if cluster in plan.elsewhere:
            self._served.discard(cluster)
            return plan.elsewhere[cluster]
        # The newest deliverer of credentials has it. Without that, two cells that read different rules, because one of
        # them was not started anew yet, would take it from each other again and again.
        label = self._label(cluster, CREDENTIALS_WORK_NAME)
        if cluster in plan.clusters:
            return label if cluster in self._served else ""
        return label or self._label(cluster, MANIFESTWORK_NAME)

    def _label(self, cluster: str, name: str) -> str:
        """The other cell that a ManifestWork says it is of; empty where it says none."""
        work = self._backend.get(Kind.WORK, cluster, name)
        label = str((work["metadata"].get("labels") or {}).get(CELL_LABEL, "")) if work is not None else ""
        return label if self._desired.cells.is_other(label) else ""

    def _leave(self, cluster: str, elsewhere: str = "") -> None:
        """The cluster is gone or not accepted: take away all that was made for it. One that is another cell's is
        forgotten here, and what it has is left to that cell.
        """
        unreachable: redis.RedisError | None = None
        try:
            if elsewhere:
                self._registrar.leave_scores(cluster)
            self._credentials.withdraw(cluster)
            self._registrar.remove_cluster(cluster)
            self._registrar.notices.forget_cluster(cluster)
        except redis.RedisError as error:
            unreachable = error
        self._held.pop(cluster, None)
        if elsewhere:
            self._backend.hand_over(cluster, elsewhere)
        else:
            self._delete_work(cluster)
            self._backend.remove_credentials(cluster)
        self._note(cluster, None)
        if unreachable is not None:
            raise unreachable

    def _hold(self, cluster: str, wanted: dict[str, Entry], *, has_arrived: bool) -> float | None:
        """Take entries out of `wanted` that begin before the agent knows of them; returns the seconds until they are
        wanted all the same, None when there are none. The arrival is told as a change of the ManifestWork.
        """
        present = self._registrar.present(cluster)
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
                # Not runnable: an override that says "not paused" must not send the tick either.
                held = {"suspended": True, "suspended_until": None, "runnable": False}
                wanted[name] = wanted[name].model_copy(update=held)
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
        told = plan.summaries(cluster)
        wanted = manifest_work(
            cluster,
            self._agent_namespace,
            self._summaries(plan, cluster, running, told),
            frozenset().union(*(summary.references for summary in told)),
            uses_account=any(summary.uses_account for summary in told),
            secrets=self._secrets(plan.delivered(cluster)),
            redis_url=self._redis_url,
            cell=self._desired.cells.own,
        )
        work = self._backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
        if work is None or not carries(work, wanted):
            self._backend.apply(wanted)
            work = self._backend.get(Kind.WORK, cluster, MANIFESTWORK_NAME)
        has_arrived = work is not None and is_applied(work) and carries(work, wanted)
        if work is not None and work["metadata"].get("deletionTimestamp"):
            # Of a time before: it goes first, and is then made anew.
            has_arrived = False
        self._note(cluster, frozenset(scorer.name for scorer in running) if has_arrived else None)
        return has_arrived

    def _secrets(self, names: Iterable[str]) -> list[Manifest]:
        """The hub's Secrets as this cluster gets them."""
        namespace = self._desired.config_key.namespace
        # One that went a moment ago is told of, and then it is not in the plan.
        found = (self._backend.get(Kind.SECRET, namespace, name) for name in sorted(names))
        return [copy_for(self._agent_namespace, secret) for secret in found if secret is not None]

    def _summaries(self, plan: Plan, cluster: str, running: list[ScorerPlan], told: list[ScorerSummary]) -> str:
        """As text. Most clusters are told the same, which is made once for each plan."""
        names = tuple(scorer.name for scorer in running)
        if any(scorer.is_varied for scorer in running):
            names = (*names, f"on {cluster}")
        of_plan, texts = self._texts
        if of_plan is not plan:
            self._texts = of_plan, texts = plan, {}
        if names not in texts:
            texts[names] = dump_summaries(told)
        return texts[names]

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

    def _note_problem(self, cluster: str, plan: Plan, problem: tuple[str, bool] | None) -> None:
        with self._lock:
            before = self._problems.pop(cluster, None)
            if problem is not None:
                self._problems[cluster] = problem
        if before != problem:
            self._on_distributed(frozenset(scorer.name for scorer in plan.running(cluster)))

    def _note(self, cluster: str, names: frozenset[str] | None) -> None:
        with self._lock:
            before = self._distributed.pop(cluster, None)
            if names is not None:
                self._distributed[cluster] = names
        if before != names:
            self._on_distributed((before or frozenset()) ^ (names or frozenset()))
