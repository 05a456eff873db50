"""Writes to Redis: scorers and clusters of the registry, entries of the schedule.

Caches the content, so that an unchanged cluster costs no round trip; `refresh` rereads it, so that losses and foreign
writes in Redis are corrected.

All scores are in one Redis, and a namespace that filled it would end everybody's scoring. Therefore each namespace has
a share for its scores: the hub's own namespace half, and the others equal parts of the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import redis

import dsf.log
from dsf import keys
from dsf.hub.admission import is_owner
from dsf.hub.cycleoutcomes import CycleOutcomes
from dsf.hub.plan import FleetPlan
from dsf.hub.scorerplan import ScorerPlan
from dsf.process import hubclock
from dsf.process.outage import Outage, StillAwayError
from dsf.store.agents import Agents
from dsf.store.client import parsed
from dsf.store.entries import Entry, Pace, pace
from dsf.store.notices import Notices
from dsf.store.pairs import Pairs
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore

log = dsf.log.get(__name__)


#: Part of Redis' `maxmemory` for scores. The schedule, books, histories, queues and mailboxes need the rest.
_FOR_SCORES: Final = 0.5
#: `maxmemory` of a Redis that has none: the chart's default.
DEFAULT_MEMORY: Final = 2 * 1024**3


def score_rooms(namespaces: Iterable[str], home: str, max_memory: int) -> dict[str, int]:
    """Return the bytes for the scores of each namespace; `home` is the hub's own, `max_memory` that of Redis."""
    present = set(namespaces)
    room = int((max_memory or DEFAULT_MEMORY) * _FOR_SCORES)
    foreign_namespaces = present - {home}
    if not foreign_namespaces:
        return dict.fromkeys(present, room)
    home_room = {home: room // 2} if home in present else {}
    share = (room - sum(home_room.values())) // len(foreign_namespaces)
    return home_room | dict.fromkeys(foreign_namespaces, share)


def with_rooms(records: Mapping[str, ScorerRecord], home: str, max_memory: int) -> dict[str, ScorerRecord]:
    """Return the records with the room of their namespace's scores."""
    rooms = score_rooms((record.namespace for record in records.values()), home, max_memory)
    return {name: record.model_copy(update={"score_room": rooms[record.namespace]}) for name, record in records.items()}


class Registrar:
    """Writes the registry and the schedule. Thread-safe if each cluster is handled by one thread at a time.

    Methods raise redis.RedisError if Redis is unreachable; all are idempotent.
    """

    def __init__(
        self,
        client: redis.Redis,
        outage: Outage,
        on_pairs: Callable[[Iterable[tuple[str, str]]], None] = lambda _: None,
    ) -> None:
        """While the `outage` of Redis lasts every method fails at once instead of waiting for it.

        `on_pairs` gets the (cluster, scorer) whose score may have to be written or deleted now.
        """
        self._on_pairs = on_pairs
        self._outage = outage
        self._redis = client
        self._schedule = ScheduleStore(client)
        self._registry = Registry(client)
        self._pairs = Pairs(client)
        #: Notices for users.
        self.notices = Notices(client)
        self._lock = threading.RLock()
        # Held while all of Redis is read: a hub that takes over has many threads that need it, and one reads it.
        self._reading = threading.RLock()
        self._is_read = False
        # Clusters whose entries were changed since `refresh` began.
        self._touched: set[str] = set()
        self._entries: dict[str, dict[str, Entry]] = {}
        self._scorers: dict[str, ScorerRecord] = {}
        self._clusters: dict[str, ClusterRecord] = {}
        self._agents = Agents(client)
        self._agent_problems: Mapping[str, str] = {}
        # Text of an entry -> the parsed entry.
        self._parsed: dict[str, Entry | None] = {}
        # Bytes that Redis may take; 0 without a limit.
        self._max_memory = 0
        # The plan whose scorers the registry has, and scorers' errors at the last attempt.
        self._synced: FleetPlan | None = None
        self._problems: Mapping[str, Exception] = {}

    def refresh(self) -> set[str]:
        """Reread Redis; returns the clusters changed by others since the last time."""
        with self._reading:
            with self._lock:
                self._touched.clear()
            entry_texts = self._schedule.stored()
            self._max_memory = _max_memory(self._redis)
            # Most are as they were, and are not parsed again.
            self._parsed = {
                text: self._parsed.get(text) or parsed(Entry, pair, text) for pair, text in entry_texts.items()
            }
            by_cluster: dict[str, dict[str, Entry]] = {}
            for entry in filter(None, self._parsed.values()):
                by_cluster.setdefault(entry.cluster, {})[entry.scorer] = entry
            return self._cache_entries(by_cluster)

    def _cache_entries(self, by_cluster: dict[str, dict[str, Entry]]) -> set[str]:
        with self._lock:
            for cluster in self._touched:
                # Changed while reading: the cache is newer.
                by_cluster[cluster] = self._entries.get(cluster, {})
            entries = {cluster: entries for cluster, entries in by_cluster.items() if entries}
            clusters = self._registry.clusters()
            changed_clusters = _differing(self._entries, entries) | _differing(self._clusters, clusters)
            self._entries, self._clusters, self._scorers = entries, clusters, self._registry.scorers()
            self._synced = None
            self._agent_problems = {
                name: agent.problem for name, agent in sorted(self._agents.all().items()) if agent.problem
            }
            # The first time there is nothing to compare with.
            changed_clusters, self._is_read = changed_clusters if self._is_read else set(), True
        return changed_clusters

    def known_clusters(self) -> frozenset[str]:
        """The clusters with any data in Redis, existing or not."""
        self._ensure_read()
        with self._lock:
            scheduled = (cluster for cluster, entries in self._entries.items() if entries)
            return frozenset(scheduled) | frozenset(self._clusters)

    def sync_scorers(self, plan: FleetPlan) -> Mapping[str, Exception]:
        """Make the registry's scorers those of the plan. Overrides of removed scorers are deleted.

        Returns errors by scorer name; the other scorers are written regardless.
        """
        self._ensure_read()
        problems: dict[str, Exception] = {}
        with self._lock:
            if plan is self._synced:
                return self._problems
            desired_records = with_rooms(plan.records(self._scorers), plan.home, self._max_memory)
            for name in {**desired_records, **self._scorers}:
                try:
                    before = self._scorers.get(name)
                    exists = before is not None and plan.exists(before.namespace, name)
                    self._sync_scorer(name, desired_records.get(name), exists=exists)
                except (redis.ConnectionError, redis.TimeoutError):
                    raise
                except Exception as error:
                    problems[name] = error
                    # Once, and not for each cluster.
                    if repr(error) != repr(self._problems.get(name)):
                        log.error(
                            "a scorer cannot be registered, the others go on",
                            scorer=name,
                            error=str(error),
                            exc_info=not isinstance(error, redis.RedisError),
                        )
            self._problems, self._synced = problems, None if problems else plan
        return problems

    def _sync_scorer(self, name: str, desired_record: ScorerRecord | None, *, exists: bool) -> None:
        before = self._scorers.get(name)
        if before == desired_record:
            return
        if desired_record is None or (before is not None and not is_owner(before.namespace, desired_record.namespace)):
            self._registry.remove_scorer(name)
            if not exists:
                self._schedule.forget(name)
            self._scorers.pop(name, None)
            before = None
        if desired_record is None:
            return
        self._registry.put_scorer(desired_record)
        self._scorers[name] = desired_record
        if before is not None and before.model_copy(update={"score_room": desired_record.score_room}) != desired_record:
            # Dimension format, validity or failure policy changed: scores may need a rewrite.
            self._on_pairs([(cluster, name) for cluster in self._clusters_with(name)])

    def present(self, cluster: str) -> Mapping[str, Entry]:
        """A cluster's entries in the schedule, by scorer."""
        self._ensure_read()
        with self._lock:
            return dict(self._entries.get(cluster, {}))

    def remove_other_entries(self, cluster: str, desired_entries: Mapping[str, Entry]) -> None:
        """Remove a cluster's unwanted entries, and those of a scorer whose name one of another namespace has now; their
        scores are removed."""
        removed_scorers = [
            scorer
            for scorer, entry in self.present(cluster).items()
            if scorer not in desired_entries or not is_owner(entry.namespace, desired_entries[scorer].namespace)
        ]
        if not removed_scorers:
            return
        self._schedule.remove(keys.pair(cluster, scorer) for scorer in removed_scorers)
        with self._lock:
            self._touched.add(cluster)
            entries = self._entries.get(cluster, {})
            self._entries[cluster] = {
                scorer: entry for scorer, entry in entries.items() if scorer not in removed_scorers
            }
        self._on_pairs([(cluster, scorer) for scorer in removed_scorers])

    def agent_problems(self) -> Mapping[str, str]:
        """Cluster -> why its agent's results are refused; only clusters with such a problem."""
        self._ensure_read()
        with self._lock:
            return {name: text for name, text in self._agent_problems.items() if name in self._clusters}

    def cluster(self, name: str) -> ClusterRecord:
        """The registered cluster of this name, with its uid and the ids of its valid credentials; none if it is not."""
        self._ensure_read()
        with self._lock:
            return self._clusters.get(name) or ClusterRecord(name=name, key_ids=())

    def put_cluster(self, record: ClusterRecord) -> None:
        """Register a cluster."""
        self._ensure_read()
        with self._lock:
            if self._clusters.get(record.name) == record:
                return
            before = self._clusters.get(record.name)
            self._registry.put_cluster(record)
            self._clusters[record.name] = record
            scorers = [*self._entries.get(record.name, ())]
        if before is None or before.uid != record.uid:
            # Its scores have another owner.
            self._on_pairs([(record.name, scorer) for scorer in scorers])

    def put_entries(self, cluster: str, desired_entries: Mapping[str, Entry]) -> None:
        """Write new or changed entries. The agent's delivery for them must precede."""
        present = self.present(cluster)
        changed = [entry for scorer, entry in desired_entries.items() if present.get(scorer) != entry]
        if not changed:
            return
        self._schedule.upsert(changed, hubclock.now())
        with self._lock:
            self._touched.add(cluster)
            self._entries[cluster] = {**self._entries.get(cluster, {}), **{entry.scorer: entry for entry in changed}}
        # The pairs of a cluster that has come back may be missing.
        self._on_pairs([(cluster, entry.scorer) for entry in changed])

    def remove_cluster(self, cluster: str) -> None:
        """Forget a cluster and all its entries; its scores are removed."""
        self.remove_other_entries(cluster, {})
        with self._lock:
            if cluster in self._clusters:
                self._registry.remove_cluster(cluster)
                del self._clusters[cluster]

    def cycles(self, plan: ScorerPlan, clusters: list[str]) -> CycleOutcomes:
        """Outcomes of a scorer's newest cycles."""
        self._ensure_read()
        now = hubclock.now()
        return CycleOutcomes.of(self._pairs.rows((cluster, plan.name) for cluster in clusters), now)

    def pace(self, plan: ScorerPlan, clusters: list[str]) -> Pace:
        """Effective interval of a scorer on the clusters that it is wanted on."""
        self._ensure_read()
        declared = plan.resolved.summary.scoring_interval if plan.resolved is not None else 0
        return pace(plan.name, declared, clusters, self._schedule.overrides_of(plan.name, clusters), hubclock.now())

    def _clusters_with(self, scorer: str) -> list[str]:
        return [cluster for cluster, entries in self._entries.items() if scorer in entries]

    def _ensure_read(self) -> None:
        self._refuse_if_away()
        if self._is_read:
            return
        with self._reading:
            # The one before may have found Redis away: no other one waits as long.
            self._refuse_if_away()
            if not self._is_read:
                try:
                    self.refresh()
                except (redis.ConnectionError, redis.TimeoutError) as error:
                    self._outage.begin(error)
                    raise

    def _refuse_if_away(self) -> None:
        if self._outage.is_on:
            raise StillAwayError("Redis cannot be reached")


def _max_memory(client: redis.Redis) -> int:
    """Return the bytes that Redis may take; 0 without a limit, or if a Redis that others run does not say it."""
    try:
        memory: Any = client.info("memory")
    except redis.ResponseError as error:
        log.debug("the memory of Redis was not read", error=str(error))
        return 0
    return int(memory.get("maxmemory", 0))


def _differing(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
