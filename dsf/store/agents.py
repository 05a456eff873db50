"""Agents by their signed results: versions and credentials, so that refused ones are reported, not ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import redis
from pydantic import BaseModel, ConfigDict

from dsf import keys
from dsf.api.types import CREDENTIALS_WORK_NAME
from dsf.store.client import at_once
from dsf.store.registry import ClusterRecord
from dsf.store.unreadable import parsed, whole


class AgentRecord(BaseModel):
    """An agent per its newest result."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    #: Version of its messages.
    schema_version: int = keys.SCHEMA_VERSION
    #: Its software version; empty if not sent.
    version: str = ""

    @property
    def problem(self) -> str:
        """Why its results are refused, as text; empty if they are not."""
        if keys.is_supported(self.schema_version):
            return ""
        what = f"its agent ({self.version})" if self.version else "its agent"
        oldest, newest = keys.SCHEMA_VERSION - 1, keys.SCHEMA_VERSION + 1
        text = f"{what} speaks version {self.schema_version} of the messages, the hub {oldest} to {newest}"
        if self.schema_version < oldest:
            return f"{text}: the agent is too old and its results are refused; upgrade it"
        return f"{text}: the hub is too old and refuses its results; upgrade the hub, or take the agent back"


class Agents:
    """Methods raise redis.RedisError if Redis is unreachable."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def note_all(self, records: Mapping[str, tuple[AgentRecord, int]]) -> None:
        """Store agents' versions, and the newest key ids that they signed with. One round trip."""
        texts = {name: record.model_dump_json() for name, (record, _) in records.items()}
        at_once(
            self._redis,
            ("HSET", keys.KEYS_USED, *(part for name, (_, key_id) in records.items() for part in (name, key_id))),
            ("HSET", keys.AGENTS, *(part for item in texts.items() for part in item)),
        )

    def one(self, cluster: str) -> AgentRecord | None:
        """The agent of one cluster; None if unknown, or if its record is unreadable."""
        return parsed(AgentRecord, cluster, self._redis.hget(keys.AGENTS, cluster))

    def all(self) -> dict[str, AgentRecord]:
        """By cluster. Unreadable records are logged and left out."""
        stored = {str(name): str(text) for name, text in self._redis.hgetall(keys.AGENTS).items()}
        records = {name: parsed(AgentRecord, name, text) for name, text in stored.items()}
        return {name: record for name, record in records.items() if record is not None}

    def problems(self, clusters: Iterable[ClusterRecord]) -> Mapping[str, str]:
        """Cluster -> why its agent's results are refused; only those of these with a problem, by name."""
        used: dict[Any, Any] = self._redis.hgetall(keys.KEYS_USED)
        agents = self.all()
        problems = {
            cluster.name: problem(cluster, agents.get(cluster.name), key_id(cluster.name, used.get(cluster.name)))
            for cluster in clusters
        }
        return {name: text for name, text in sorted(problems.items()) if text}

    def problem(self, cluster: ClusterRecord) -> str:
        """The same for one cluster; empty if its results are not refused."""
        used = self._redis.hget(keys.KEYS_USED, cluster.name)
        return problem(cluster, self.one(cluster.name), key_id(cluster.name, used))


def problem(cluster: ClusterRecord, agent: AgentRecord | None, used: int | None) -> str:
    """Why the results of a cluster's agent are refused; `used` is the key id of its newest valid signature."""
    if agent is not None and agent.problem:
        return agent.problem
    if used is None or not cluster.key_ids or used in cluster.key_ids:
        return ""
    return (
        f"its agent was last seen with the credentials {used}, which are withdrawn: Redis and the hub refuse it until "
        f"it has the credentials {max(cluster.key_ids)}, which come with the ManifestWork {CREDENTIALS_WORK_NAME} in "
        f"the namespace {cluster.name} of the hub"
    )


def key_id(cluster: str, text: object) -> int | None:
    """The stored key id of a cluster's newest signature; None if there is none, or if it cannot be read."""
    return whole("key id", cluster, text) or None
