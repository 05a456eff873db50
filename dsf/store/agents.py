"""Agents by their signed results: versions and credentials, so that refused ones are reported, not ignored; and
requests for new credentials.

No secret is here. Valid key ids are in the clusters' records of `dsf.store.registry`; deliveries, in the hub
controller's backend. Losing this data loses only open requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import redis
from pydantic import BaseModel, ConfigDict, Field

import dsf.log
from dsf import keys
from dsf.api.types import CREDENTIALS_WORK_NAME
from dsf.errors import UnknownClusterError
from dsf.store.client import at_once, batched, parsed, parsed_all, whole
from dsf.store.registry import ClusterRecord, Registry

log = dsf.log.get(__name__)


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

    def write_all(self, records: Mapping[str, tuple[AgentRecord, int]]) -> None:
        """Store agents' versions, and the newest key ids that they signed with, in one round trip."""
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
        return parsed_all(AgentRecord, self._redis.hgetall(keys.AGENTS))

    def problems(self, clusters: Iterable[ClusterRecord]) -> Mapping[str, str]:
        """Cluster -> why its agent's results are refused; only those of these with a problem, by name."""
        used_keys: dict[Any, Any] = self._redis.hgetall(keys.KEYS_USED)
        agents = self.all()
        problems = {cluster.name: _problem(cluster, agents.get(cluster.name), used_keys) for cluster in clusters}
        return {name: text for name, text in sorted(problems.items()) if text}

    def problem(self, cluster: ClusterRecord) -> str:
        """The same for one cluster; empty if its results are not refused."""
        used_keys = {cluster.name: self._redis.hget(keys.KEYS_USED, cluster.name)}
        return _problem(cluster, self.one(cluster.name), used_keys)


def _problem(cluster: ClusterRecord, agent: AgentRecord | None, used_keys: Mapping[str, object]) -> str:
    """`used_keys` are key ids of newest valid signatures by cluster."""
    if agent is not None and agent.problem:
        return agent.problem
    used_id = key_id(cluster.name, used_keys.get(cluster.name))
    if used_id is None or not cluster.key_ids or used_id in cluster.key_ids:
        return ""
    return (
        f"its agent was last seen with the credentials {used_id}, which are withdrawn: Redis and the hub refuse it "
        f"until it has the credentials {max(cluster.key_ids)}, which come with the ManifestWork "
        f"{CREDENTIALS_WORK_NAME} in the namespace {cluster.name} of the hub"
    )


def key_id(cluster: str, text: object) -> int | None:
    """The stored key id of a cluster's newest signature; None if there is none, or if it cannot be read."""
    return whole("key id", cluster, text) or None


class KeyRequest(BaseModel):
    """A request to replace a cluster's credentials of `key_id`.

    `rotate` keeps the old ones until the agent has the new ones, `revoke` does not.
    """

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    action: Literal["rotate", "revoke"]
    #: The current id at the time of the request, which makes it idempotent.
    key_id: int = Field(ge=1)
    by: str = ""


class AgentKeys:
    """Methods raise redis.RedisError if Redis is unreachable."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def ask(self, cluster: str, action: Literal["rotate", "revoke"], *, by: str = "") -> KeyRequest:
        """Request new credentials; the hub controller creates them at once. An open request is replaced.

        Raises UnknownClusterError.
        """
        record = Registry(self._redis).cluster(cluster)
        if not record.key_ids:
            raise UnknownClusterError(f"cluster {cluster!r} has no credentials yet; try again in a moment")
        request = KeyRequest(action=action, key_id=record.key_ids[0], by=by)
        # The request must also work with a full Redis, which may be the reason for it.
        at_once(
            self._redis,
            ("HSET", keys.KEY_REQUESTS, cluster, request.model_dump_json()),
            ("LPUSH", keys.HUB_WAKE, "1"),
            ("LTRIM", keys.HUB_WAKE, 0, 0),
        )
        return request

    def requests(self) -> dict[str, KeyRequest]:
        """Open requests by cluster. Unreadable ones are logged and left out."""
        return parsed_all(KeyRequest, self._redis.hgetall(keys.KEY_REQUESTS))

    def done(self, cluster: str, request: KeyRequest) -> None:
        """Forget a request, unless replaced meanwhile."""
        # Some of its methods are untyped.
        pipe: Any = self._redis.pipeline()
        with pipe:
            pipe.watch(keys.KEY_REQUESTS)
            if pipe.hget(keys.KEY_REQUESTS, cluster) != request.model_dump_json():
                return
            pipe.multi()
            pipe.hdel(keys.KEY_REQUESTS, cluster)
            try:
                pipe.execute()
            except redis.WatchError:
                # A newer request came; this one is recognised as done at the next check.
                log.debug("request for credentials stays until the next look", cluster=cluster)

    def used(self) -> dict[str, int]:
        """Cluster -> key id of its newest result's signature."""
        ids_by_cluster = (
            (str(name), key_id(str(name), text)) for name, text in self._redis.hgetall(keys.KEYS_USED).items()
        )
        return {name: used_id for name, used_id in ids_by_cluster if used_id is not None}

    def last_used(self, cluster: str) -> int | None:
        """The same for one cluster; None if it never signed anything."""
        return key_id(cluster, self._redis.hget(keys.KEYS_USED, cluster))

    def retire(self, cluster: str, key_id: int) -> None:
        """The cluster is gone: credentials of a later one of this name start after this id."""
        at_once(
            self._redis,
            ("HSET", keys.KEYS_USED, cluster, key_id),
            ("HDEL", keys.KEY_REQUESTS, cluster),
            ("HDEL", keys.AGENTS, cluster),
        )

    def empty(self, cluster: str) -> None:
        """Remove what a cluster's invalid credential may have written or taken: its mail and its queue."""
        self._redis.delete(keys.spoke_queue(cluster), *keys.mail_slots(cluster), keys.mail_flag(cluster))


def results_waiting(client: redis.Redis, clusters: Iterable[str]) -> int:
    """The number of results in the mailboxes of these clusters. Raises redis.RedisError."""
    waiting = 0
    for batch in batched(clusters, 500):
        with client.pipeline(transaction=False) as pipe:
            for cluster in batch:
                pipe.exists(*keys.mail_slots(cluster))
            waiting += sum(pipe.execute())
    return waiting
