"""Writes scorers and clusters to the registry in Redis, and entries to the schedule.

The registrar caches the content of Redis, so that an unchanged cluster costs no round trip; `refresh` rereads it, so
that lost data and external writes are corrected.

All scores share one Redis, and a namespace that filled it would stop the scoring of all namespaces. Therefore each
namespace has a share for its scores: the hub's own namespace has half, and the others have equal parts of the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import redis

import dsf.log
from dsf import keys
from dsf.hub.admission import is_owner
from dsf.hub.cycleoutcomes import CycleOutcomes
from dsf.hub.plan import FleetPlan
from dsf.hub.scorerplan import ScorerPlan
from dsf.process import hubclock
from dsf.process.outage import KnownOutageError, Outage
from dsf.store.agents import Agents
from dsf.store.client import parse_stored
from dsf.store.entries import Entry, Pace, compute_pace
from dsf.store.notices import Notices
from dsf.store.pairs import Pairs
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from dsf.store.schedule import ScheduleStore

log = dsf.log.get(__name__)

#: Fraction of Redis' `maxmemory` for scores. The schedule, pair states, histories, queues and mailboxes need the rest.
_SCORE_SHARE: Final = 0.5
#: Assumed `maxmemory` of a Redis without a limit: the default in the chart.
DEFAULT_MEMORY_BYTES: Final = 2 * 1024**3


def compute_score_limits(namespaces: Iterable[str], home: str, max_memory: int) -> dict[str, int]:
    """Return the bytes for the scores of each namespace; `home` is the hub's namespace, `max_memory` 0 if unlimited."""
    distinct_namespaces = set(namespaces)
    total_bytes = int((max_memory or DEFAULT_MEMORY_BYTES) * _SCORE_SHARE)
    foreign_namespaces = distinct_namespaces - {home}
    if not foreign_namespaces:
        return dict.fromkeys(distinct_namespaces, total_bytes)
    home_bytes = {home: total_bytes // 2} if home in distinct_namespaces else {}
    share = (total_bytes - sum(home_bytes.values())) // len(foreign_namespaces)
    return home_bytes | dict.fromkeys(foreign_namespaces, share)


class ScoreLimits:
    """Adds the bytes for the scores of a namespace to the records of its scorers. Instances are not thread-safe."""

    def __init__(self) -> None:
        # Name of a scorer -> its record, and the result for the record.
        self._results: dict[str, tuple[ScorerRecord, ScorerRecord]] = {}

    def add(self, records: Mapping[str, ScorerRecord], home: str, max_memory: int) -> dict[str, ScorerRecord]:
        """Return the records with the bytes for their namespace: the same object as the last time if it is equal."""
        limits = compute_score_limits((record.namespace for record in records.values()), home, max_memory)
        previous_results, self._results = self._results, {}
        for name, record in records.items():
            limit = limits[record.namespace]
            previous_record, result = previous_results.get(name, (None, record))
            if previous_record is not record or result.score_room != limit:
                result = record.model_copy(update={"score_room": limit})
            self._results[name] = record, result
        return {name: result for name, (_, result) in self._results.items()}


class Registrar:
    """A cached writer of registry and schedule. Thread-safe if each cluster is handled by one thread at a time.

    All methods are idempotent. They raise redis.RedisError if Redis is unreachable or rejects a command.
    """

    def __init__(
        self,
        client: redis.Redis,
        outage: Outage,
        request_score_check: Callable[[Iterable[tuple[str, str]]], None] = lambda _: None,
    ) -> None:
        """During an `outage` of Redis every method fails immediately instead of waiting for Redis.

        `request_score_check` gets each (cluster, scorer) whose score may have to be written or deleted now.
        """
        self._request_score_check = request_score_check
        self._outage = outage
        self._redis = client
        self._schedule = ScheduleStore(client)
        self._registry = Registry(client)
        self._pairs = Pairs(client)
        #: Notices for users.
        self.notices = Notices(client)
        self._lock = threading.RLock()
        # A thread holds this lock while it reads Redis, so that only one of many threads does so after a takeover.
        self._refresh_lock = threading.RLock()
        self._is_read = False
        # Clusters whose entries this process has changed since `refresh` began.
        self._changed_clusters: set[str] = set()
        self._entries: dict[str, dict[str, Entry]] = {}
        self._scorers: dict[str, ScorerRecord] = {}
        self._clusters: dict[str, ClusterRecord] = {}
        self._agents = Agents(client)
        self._agent_problems: Mapping[str, str] = {}
        # Stored text of an entry -> the parsed entry, None if unreadable.
        self._entry_by_text: dict[str, Entry | None] = {}
        # Memory limit of Redis in bytes; 0 without a limit.
        self._max_memory = 0
        # The plan with which the registry was synchronized last, and the errors by scorer at the last attempt.
        self._synced_plan: FleetPlan | None = None
        self._score_limits = ScoreLimits()
        self._problems: Mapping[str, Exception] = {}

    def refresh(self) -> set[str]:
        """Reread Redis; return the clusters that other programs changed since the last call."""
        with self._refresh_lock:
            with self._lock:
                self._changed_clusters.clear()
            entry_texts = self._schedule.read_texts()
            self._max_memory = _read_max_memory(self._redis)
            # Parse only changed entries.
            self._entry_by_text = {
                text: self._entry_by_text.get(text) or parse_stored(Entry, pair, text)
                for pair, text in entry_texts.items()
            }
            entries_by_cluster: dict[str, dict[str, Entry]] = {}
            for entry in filter(None, self._entry_by_text.values()):
                entries_by_cluster.setdefault(entry.cluster, {})[entry.scorer] = entry
            return self._cache_entries(entries_by_cluster)

    def _cache_entries(self, entries_by_cluster: dict[str, dict[str, Entry]]) -> set[str]:
        with self._lock:
            for cluster in self._changed_clusters:
                # This process changed the cluster during the read, so the cache is newer.
                entries_by_cluster[cluster] = self._entries.get(cluster, {})
            entries = {cluster: entries for cluster, entries in entries_by_cluster.items() if entries}
            clusters = self._registry.read_clusters()
            changed_clusters = _find_differences(self._entries, entries) | _find_differences(self._clusters, clusters)
            self._entries, self._clusters, self._scorers = entries, clusters, self._registry.read_scorers()
            self._synced_plan = None
            self._agent_problems = {
                name: agent.problem for name, agent in sorted(self._agents.read_agents().items()) if agent.problem
            }
            # The first read has no earlier content to compare with.
            changed_clusters, self._is_read = changed_clusters if self._is_read else set(), True
        return changed_clusters

    def list_known_clusters(self) -> frozenset[str]:
        """Return all clusters with data in Redis, including clusters that no longer exist."""
        self._ensure_read()
        with self._lock:
            clusters_with_entries = (cluster for cluster, entries in self._entries.items() if entries)
            return frozenset(clusters_with_entries) | frozenset(self._clusters)

    def sync_scorers(self, plan: FleetPlan) -> Mapping[str, Exception]:
        """Synchronize the scorers in the registry with the plan. Overrides of removed scorers are deleted.

        Returns errors by scorer name; the other scorers are written regardless.
        """
        self._ensure_read()
        problems: dict[str, Exception] = {}
        changed_records: list[ScorerRecord] = []
        with self._lock:
            if plan is self._synced_plan:
                return self._problems
            desired_records = self._score_limits.add(plan.make_records(self._scorers), plan.home, self._max_memory)
            for name in {**desired_records, **self._scorers}:
                current_record = self._scorers.get(name)
                if current_record is desired_records.get(name):
                    continue
                try:
                    exists = current_record is not None and plan.exists(current_record.namespace, name)
                    if record := self._sync_scorer(name, desired_records.get(name), exists=exists):
                        changed_records.append(record)
                except (redis.ConnectionError, redis.TimeoutError):
                    raise
                except Exception as error:  # noqa: BLE001 (logged below)
                    problems[name] = error
            problems |= self._put_records(changed_records)
            for name, problem in problems.items():
                # Log each error once, and not for each cluster.
                if repr(problem) != repr(self._problems.get(name)):
                    log.error(
                        "a scorer cannot be registered, the others go on",
                        scorer=name,
                        error=str(problem),
                        exc_info=None if isinstance(problem, redis.RedisError) else problem,
                    )
            self._problems, self._synced_plan = problems, None if problems else plan
        return problems

    def _sync_scorer(self, name: str, desired_record: ScorerRecord | None, *, exists: bool) -> ScorerRecord | None:
        """Remove an undesired record; return the desired record if it must be written, else None.

        The schedule forgets a removed scorer unless it still `exists`.
        """
        current_record = self._scorers.get(name)
        if desired_record is not None and current_record == desired_record:
            # The next comparison takes less time for the same object.
            self._scorers[name] = desired_record
            return None
        if desired_record is None or (
            current_record is not None and not is_owner(current_record.namespace, desired_record.namespace)
        ):
            self._registry.remove_scorer(name)
            if not exists:
                self._schedule.forget(name)
            self._scorers.pop(name, None)
        return desired_record

    def _put_records(self, records: Sequence[ScorerRecord]) -> dict[str, Exception]:
        """Write records in one batch, because other threads wait for the lock; return the errors by name."""
        refusals = self._registry.put_scorers(records)
        for record in records:
            name = record.name
            if name in refusals:
                continue
            previous_record = self._scorers.get(name)
            self._scorers[name] = record
            if (
                previous_record is not None
                and previous_record.model_copy(update={"score_room": record.score_room}) != record
            ):
                # The dimension format, validity or failure policy may have changed, so scores may need a rewrite.
                self._request_score_check([(cluster, name) for cluster in self._find_clusters_of_scorer(name)])
        return dict(refusals)

    def get_entries(self, cluster: str) -> Mapping[str, Entry]:
        """Return the entries of a cluster in the schedule, by scorer."""
        self._ensure_read()
        with self._lock:
            return dict(self._entries.get(cluster, {}))

    def remove_other_entries(self, cluster: str, desired_entries: Mapping[str, Entry]) -> None:
        """Remove undesired entries of a cluster and their scores.

        Entries whose name now belongs to a scorer in another namespace are also removed.
        """
        removed_scorers = [
            scorer
            for scorer, entry in self.get_entries(cluster).items()
            if scorer not in desired_entries or not is_owner(entry.namespace, desired_entries[scorer].namespace)
        ]
        if not removed_scorers:
            return
        self._schedule.remove(keys.pair(cluster, scorer) for scorer in removed_scorers)
        with self._lock:
            self._changed_clusters.add(cluster)
            entries = self._entries.get(cluster, {})
            self._entries[cluster] = {
                scorer: entry for scorer, entry in entries.items() if scorer not in removed_scorers
            }
        self._request_score_check([(cluster, scorer) for scorer in removed_scorers])

    def list_agent_problems(self) -> Mapping[str, str]:
        """Return why the results of agents are rejected, by cluster; only clusters with such a problem are included."""
        self._ensure_read()
        with self._lock:
            return {name: text for name, text in self._agent_problems.items() if name in self._clusters}

    def get_cluster(self, name: str) -> ClusterRecord:
        """Return the record of a cluster; a record without uid and key ids if the cluster is not registered."""
        self._ensure_read()
        with self._lock:
            return self._clusters.get(name) or ClusterRecord(name=name, key_ids=())

    def put_cluster(self, record: ClusterRecord) -> None:
        """Register a cluster, or change its record."""
        self._ensure_read()
        with self._lock:
            if self._clusters.get(record.name) == record:
                return
            previous_record = self._clusters.get(record.name)
            self._registry.put_cluster(record)
            self._clusters[record.name] = record
            scorers = [*self._entries.get(record.name, ())]
        if previous_record is None or previous_record.uid != record.uid:
            # The scores of the cluster need a new owner reference.
            self._request_score_check([(record.name, scorer) for scorer in scorers])

    def put_entries(self, cluster: str, desired_entries: Mapping[str, Entry]) -> None:
        """Write new or changed entries. The caller must have delivered their scorers to the agent."""
        current_entries = self.get_entries(cluster)
        changed_entries = [
            entry
            for scorer, entry in desired_entries.items()
            if (current_entry := current_entries.get(scorer)) is not entry and current_entry != entry
        ]
        if not changed_entries:
            return
        self._schedule.upsert(changed_entries, hubclock.now())
        with self._lock:
            self._changed_clusters.add(cluster)
            self._entries[cluster] = {
                **self._entries.get(cluster, {}),
                **{entry.scorer: entry for entry in changed_entries},
            }
        # The scores of a cluster that has come back may be missing.
        self._request_score_check([(cluster, entry.scorer) for entry in changed_entries])

    def remove_cluster(self, cluster: str) -> None:
        """Remove a cluster with all its entries and scores."""
        self.remove_other_entries(cluster, {})
        with self._lock:
            if cluster in self._clusters:
                self._registry.remove_cluster(cluster)
                del self._clusters[cluster]

    def read_outcomes(self, plan: ScorerPlan, clusters: list[str]) -> CycleOutcomes:
        """Return the outcomes of a scorer's newest cycles on these clusters."""
        self._ensure_read()
        now = hubclock.now()
        return CycleOutcomes.from_states(self._pairs.read_rows((cluster, plan.name) for cluster in clusters), now)

    def read_pace(self, plan: ScorerPlan, clusters: list[str]) -> Pace:
        """Return the effective interval of a scorer on these clusters."""
        self._ensure_read()
        declared_interval = plan.resolved_scorer.summary.scoring_interval if plan.resolved_scorer is not None else 0
        return compute_pace(
            plan.name,
            declared_interval,
            clusters,
            self._schedule.read_overrides_of(plan.name, clusters),
            hubclock.now(),
        )

    def _find_clusters_of_scorer(self, scorer: str) -> list[str]:
        return [cluster for cluster, entries in self._entries.items() if scorer in entries]

    def _ensure_read(self) -> None:
        self._raise_during_outage()
        if self._is_read:
            return
        with self._refresh_lock:
            # Check again, so that the waiting threads fail immediately if the previous thread has found an outage.
            self._raise_during_outage()
            if not self._is_read:
                try:
                    self.refresh()
                except (redis.ConnectionError, redis.TimeoutError) as error:
                    self._outage.begin(error)
                    raise

    def _raise_during_outage(self) -> None:
        if self._outage.is_on:
            raise KnownOutageError("Redis cannot be reached")


def _read_max_memory(client: redis.Redis) -> int:
    """Return the memory limit of Redis in bytes; 0 without a limit, or if the Redis user must not read it."""
    try:
        memory: Any = client.info("memory")
    except redis.ResponseError as error:
        log.debug("the memory of Redis was not read", error=str(error))
        return 0
    return int(memory.get("maxmemory", 0))


def _find_differences(old_fields: Mapping[str, object], new_fields: Mapping[str, object]) -> set[str]:
    return {name for name in old_fields.keys() | new_fields.keys() if old_fields.get(name) != new_fields.get(name)}
