"""What the hub tells Redis: scorers and clusters in the registry, entries in the schedule.

It remembers what is there, so that work on a cluster that needs no change costs no round trip; `refresh` reads it
again, so that a Redis that lost something, or that somebody wrote to, is put right.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import redis

from dsf import keys
from dsf.hub.cycles import Cycles
from dsf.hub.outage import Outage, StillAwayError
from dsf.hub.summaries import Plan, ScorerPlan
from dsf.settings import Settings
from dsf.store.agents import Agents
from dsf.store.entries import Entry
from dsf.store.pairs import Pairs
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore
from dsf.store.writes import Claim, Writes


class Publisher:
    """Thread-safe, as long as one cluster is worked on by one thread at a time.

    Methods raise redis.RedisError when Redis cannot be reached; repeating them is always right.
    """

    def __init__(self, client: redis.Redis, settings: Settings, outage: Outage) -> None:
        """While the `outage` of Redis lasts every method fails at once, so that nobody waits for it."""
        self._outage = outage
        self._redis = client
        self._schedule = ScheduleStore(client, spread_rate=settings.beat_spread_rate)
        self._registry = Registry(client)
        self._pairs = Pairs(client)
        self._writes = Writes(client)
        self._lock = threading.RLock()
        self._is_read = False
        # Clusters whose entries were changed since `refresh` began.
        self._touched: set[str] = set()
        self._entries: dict[str, dict[str, Entry]] = {}
        self._scorers: dict[str, ScorerRecord] = {}
        self._clusters: dict[str, ClusterRecord] = {}
        self._agents = Agents(client)
        self._agent_problems: Mapping[str, str] = {}

    def refresh(self) -> None:
        """Read what is in Redis."""
        with self._lock:
            self._touched.clear()
        by_cluster: dict[str, dict[str, Entry]] = {}
        for entry in self._schedule.entries():
            by_cluster.setdefault(entry.cluster, {})[entry.scorer] = entry
        with self._lock:
            for cluster in self._touched:
                # Changed while it was read: what is remembered is newer.
                by_cluster[cluster] = self._entries.get(cluster, {})
            self._entries = {cluster: entries for cluster, entries in by_cluster.items() if entries}
            self._scorers, self._clusters = self._registry.scorers(), self._registry.clusters()
            self._agent_problems = self._agents.problems()
            self._is_read = True

    def known_clusters(self) -> frozenset[str]:
        """The clusters that Redis knows anything of, whether they exist or not."""
        self._ensure_read()
        with self._lock:
            scheduled = (cluster for cluster, entries in self._entries.items() if entries)
            return frozenset(scheduled) | frozenset(self._clusters)

    def has_entries(self) -> bool:
        """Whether anything is scheduled."""
        self._ensure_read()
        with self._lock:
            return any(self._entries.values())

    def sync_scorers(self, plan: Plan) -> None:
        """Make the registry's scorers those of the plan. Overrides of scorers that are gone are forgotten."""
        self._ensure_read()
        with self._lock:
            wanted = plan.records(self._scorers)
            for name, record in wanted.items():
                if self._scorers.get(name) == record:
                    continue
                was_known = name in self._scorers
                self._registry.put_scorer(record)
                self._scorers[name] = record
                if was_known:
                    # Dimension format, validity, what is shown while failing: scores may have to be written anew.
                    self._writes.touch_all((cluster, name) for cluster in self._clusters_with(name))
            for name in [name for name in self._scorers if name not in wanted]:
                self._registry.remove_scorer(name)
                if name not in plan.scorer_names():
                    self._schedule.forget(name)
                del self._scorers[name]

    def present(self, cluster: str) -> Mapping[str, Entry]:
        """The entries of a cluster that the schedule has, by scorer."""
        self._ensure_read()
        with self._lock:
            return dict(self._entries.get(cluster, {}))

    def remove_other_entries(self, cluster: str, wanted: Mapping[str, Entry]) -> None:
        """Remove the entries of a cluster that are not wanted; the writer is told to remove their scores."""
        gone = [scorer for scorer in self.present(cluster) if scorer not in wanted]
        if not gone:
            return
        self._schedule.remove((keys.pair(cluster, scorer) for scorer in gone), self._now())
        with self._lock:
            self._touched.add(cluster)
            entries = self._entries.get(cluster, {})
            self._entries[cluster] = {scorer: entry for scorer, entry in entries.items() if scorer not in gone}

    def agent_problems(self) -> Mapping[str, str]:
        """Cluster -> why the results of its agent are refused; only those with such a problem."""
        self._ensure_read()
        with self._lock:
            return {name: text for name, text in self._agent_problems.items() if name in self._clusters}

    def key_ids(self, cluster: str) -> tuple[int, ...]:
        """Ids of the cluster's valid credentials as they are registered; none when it is not."""
        self._ensure_read()
        with self._lock:
            record = self._clusters.get(cluster)
            return record.key_ids if record is not None else ()

    def put_cluster(self, record: ClusterRecord) -> None:
        """Register a cluster."""
        self._ensure_read()
        with self._lock:
            if self._clusters.get(record.name) == record:
                return
            self._registry.put_cluster(record)
            self._clusters[record.name] = record

    def put_entries(self, cluster: str, wanted: Mapping[str, Entry]) -> None:
        """Write the entries that are new or differ. What the agent needs for them must have been delivered before."""
        present = self.present(cluster)
        changed = [entry for scorer, entry in wanted.items() if present.get(scorer) != entry]
        if not changed:
            return
        self._schedule.upsert(changed, self._now())
        with self._lock:
            self._touched.add(cluster)
            self._entries[cluster] = {**self._entries.get(cluster, {}), **{entry.scorer: entry for entry in changed}}

    def remove_cluster(self, cluster: str) -> None:
        """Forget a cluster and all its entries; the writer is told to remove its scores."""
        self.remove_other_entries(cluster, {})
        with self._lock:
            if cluster in self._clusters:
                self._registry.remove_cluster(cluster)
                del self._clusters[cluster]

    def rewrite_score(self, cluster: str, scorer: str) -> None:
        """Have the writer write a pair's score whatever it remembers of it: somebody changed or removed it."""
        self._ensure_read()
        self._writes.touch(cluster, scorer, forget_written=True)

    def written_score(self, cluster: str, scorer: str) -> str | None:
        """Name of the score that the writer wrote for a pair and has not removed; None when there is none."""
        self._ensure_read()
        [facts] = self._writes.facts([Claim(cluster, scorer, 0.0)])
        return facts.written.name if facts.written is not None else None

    def cycles(self, plan: ScorerPlan, clusters: list[str]) -> Cycles:
        """How the newest cycles of a scorer went."""
        self._ensure_read()
        return Cycles.of(self._pairs.verdicts((cluster, plan.name) for cluster in clusters), self._now())

    def _now(self) -> float:
        """Unix seconds by the clock that all of the hub's processes see; this host's may be off."""
        seconds, microseconds = self._redis.time()
        return float(seconds) + float(microseconds) / 1e6

    def _clusters_with(self, scorer: str) -> list[str]:
        return [cluster for cluster, entries in self._entries.items() if scorer in entries]

    def _ensure_read(self) -> None:
        if self._outage.is_on:
            raise StillAwayError("Redis cannot be reached")
        if not self._is_read:
            self.refresh()
