"""Notices: information on scorers and clusters that the hub controller writes for display.

The registry contains the data on which programs depend, for running scorers only. Notices cover every accepted
DynamicScorer with its conditions, and every served cluster with its labels and excluded scorers.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Final, Literal

import redis
from pydantic import BaseModel, ConfigDict

from dsf import keys
from dsf.store.client import parse_all_stored, parse_stored, run_atomically

#: OCM's label for a cluster's ClusterSet.
CLUSTER_SET: Final = "cluster.open-cluster-management.io/clusterset"
#: Prefix of OCM's labels for add-ons. There are many, and they are useless for grouping a fleet.
_UNUSED_PREFIX: Final = "feature.open-cluster-management.io/"
#: `problem` of a ConfigRead of a scorer whose /config is never read.
NOT_READ: Final = "configSyncMode is None: /config is not read"


class ConditionNotice(BaseModel):
    """A condition of a DynamicScorer."""

    model_config = ConfigDict(frozen=True)

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    #: Unix seconds at which the status last changed.
    since: float


class ScorerNotice(BaseModel):
    """The conditions of a DynamicScorer."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    name: str
    namespace: str = ""
    conditions: tuple[ConditionNotice, ...] = ()


class ConfigRead(BaseModel):
    """The newest check of a scoring API's /config."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    name: str
    #: Unix seconds of the last valid response; 0 if there was none.
    at: float = 0.0
    #: Why the newest check failed; empty if it succeeded.
    problem: str = ""
    #: Id of the newest request by `dsf sync` that this check fulfils.
    request: str = ""


class ClusterNotice(BaseModel):
    """The labels of a cluster, and the reasons why scorers do not run on it."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    name: str
    labels: dict[str, str] = {}
    #: Running scorer -> why it does not run on this cluster: masked, not selected, or something is missing.
    absent: dict[str, str] = {}
    #: Why no scorer runs on this cluster, and until when its data is kept; empty while it is served.
    problem: str = ""


def select_grouping_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that are useful for grouping a fleet, starting with the ClusterSet's."""
    names = sorted(
        (name for name in labels if not name.startswith(_UNUSED_PREFIX)), key=lambda name: (name != CLUSTER_SET, name)
    )
    return {name: labels[name] for name in names[:32]}


def truncate(message: str, limit: int = 2000) -> str:
    """Return the message, truncated to `limit` characters."""
    return message if len(message) <= limit else message[: limit - 1] + "…"


class Notices:
    """Reads and writes notices. Skips the write of an unchanged notice until `forget_written`. Thread-safe.

    Methods raise redis.RedisError if Redis is unreachable.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._lock = threading.Lock()
        # (key, name) -> last written text. Recorded before the write, so that two threads do not both write.
        self._last_texts: dict[tuple[str, str], str] = {}

    def write_scorer(self, notice: ScorerNotice) -> None:
        """Write a DynamicScorer's notice."""
        self._write(keys.SCORER_NOTICES, notice)

    def write_cluster(self, notice: ClusterNotice) -> None:
        """Write a cluster's notice."""
        self._write(keys.CLUSTER_NOTICES, notice)

    def write_config_read(self, read: ConfigRead) -> None:
        """Write a scorer's newest check of /config. A failed check keeps the time of the last successful one."""
        if read.problem not in ("", NOT_READ) and (previous_read := self.read_config_read(read.name)) is not None:
            read = read.model_copy(update={"at": previous_read.at})
        text = read.model_dump_json(exclude_defaults=True)
        run_atomically(self._redis, ("HSET", keys.CONFIG_READS, read.name, text))

    def read_config_read(self, name: str) -> ConfigRead | None:
        """Return a scorer's newest check of /config."""
        return parse_stored(ConfigRead, name, self._redis.hget(keys.CONFIG_READS, name))

    def read_config_reads(self) -> dict[str, ConfigRead]:
        """Return the newest checks of /config by scorer."""
        return parse_all_stored(ConfigRead, self._redis.hgetall(keys.CONFIG_READS))

    def forget_cluster(self, name: str) -> None:
        """Remove a cluster's notice."""
        self._remove(keys.CLUSTER_NOTICES, {name})
        self._redis.hdel(keys.CLUSTER_NOTICES, name)

    def forget_written(self) -> None:
        """Make the next write of each notice unconditional, because Redis may have lost it."""
        with self._lock:
            self._last_texts.clear()

    def remove_others(self, scorers: Collection[str], clusters: Collection[str] | None = None) -> set[str]:
        """Remove the notices of all other scorers, and of all other clusters unless `clusters` is None.

        Returns the clusters in `clusters` whose notice Redis has lost.
        """
        self._remove_others(keys.SCORER_NOTICES, scorers)
        self._remove_others(keys.CONFIG_READS, scorers)
        return set() if clusters is None else self._remove_others(keys.CLUSTER_NOTICES, clusters)

    def _remove_others(self, key: str, names: Collection[str]) -> set[str]:
        stored_names = {str(name) for name in self._redis.hkeys(key)}
        removed_names, lost_names = stored_names.difference(names), set(names) - stored_names
        self._remove(key, removed_names | lost_names)
        if removed_names:
            self._redis.hdel(key, *removed_names)
        return lost_names

    def read_scorers(self) -> dict[str, ScorerNotice]:
        """Return all notices by name."""
        return parse_all_stored(ScorerNotice, self._redis.hgetall(keys.SCORER_NOTICES))

    def read_scorer(self, name: str) -> ScorerNotice | None:
        """Return a DynamicScorer's notice, or None if it is missing or unreadable."""
        return parse_stored(ScorerNotice, name, self._redis.hget(keys.SCORER_NOTICES, name))

    def read_clusters(self) -> dict[str, ClusterNotice]:
        """Return all notices by name."""
        return parse_all_stored(ClusterNotice, self._redis.hgetall(keys.CLUSTER_NOTICES))

    def read_cluster(self, name: str) -> ClusterNotice | None:
        """Return a cluster's notice, or None if it is missing or unreadable."""
        return parse_stored(ClusterNotice, name, self._redis.hget(keys.CLUSTER_NOTICES, name))

    def _write(self, key: str, notice: ScorerNotice | ClusterNotice) -> None:
        cache_key, text = (key, notice.name), notice.model_dump_json(exclude_defaults=True)
        with self._lock:
            if self._last_texts.get(cache_key) == text:
                return
            self._last_texts[cache_key] = text
        try:
            run_atomically(self._redis, ("HSET", *cache_key, text))
        except BaseException:
            self._remove(key, {notice.name})
            raise

    def _remove(self, key: str, names: Collection[str]) -> None:
        with self._lock:
            for name in names:
                self._last_texts.pop((key, name), None)
