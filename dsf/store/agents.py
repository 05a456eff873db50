"""Versions and credentials of agents as seen in their signed results, and requests for new credentials.

The hub uses this data to report an agent whose results are refused. The data contains no secrets, and its loss loses
only open requests. Valid key ids are in the clusters' records of `dsf.store.registry`.
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
from dsf.store.client import parse_all_stored, parse_counter, parse_stored, run_atomically, split_into_batches
from dsf.store.registry import ClusterRecord, Registry

log = dsf.log.get(__name__)


class AgentRecord(BaseModel):
    """The versions in an agent's newest result."""

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    #: Version of its messages.
    schema_version: int = keys.SCHEMA_VERSION
    #: Its software version; empty if not sent.
    version: str = ""

    @property
    def problem(self) -> str:
        """Why the agent's results are refused; empty if they are accepted."""
        if keys.is_supported(self.schema_version):
            return ""
        agent = f"its agent ({self.version})" if self.version else "its agent"
        oldest, newest = keys.SCHEMA_VERSION - 1, keys.SCHEMA_VERSION + 1
        text = f"{agent} speaks version {self.schema_version} of the messages, the hub {oldest} to {newest}"
        if self.schema_version < oldest:
            return f"{text}: the agent is too old and its results are refused; upgrade it"
        return f"{text}: the hub is too old and refuses its results; upgrade the hub, or take the agent back"


class Agents:
    """Reads and writes the agents' versions. Methods raise redis.RedisError if Redis is unreachable."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def write_all(self, records: Mapping[str, tuple[AgentRecord, int]]) -> None:
        """Store the versions of agents and the newest key ids that they signed with, in one round trip.

        `records` has (record, key id) by cluster.
        """
        texts = {name: record.model_dump_json() for name, (record, _) in records.items()}
        run_atomically(
            self._redis,
            ("HSET", keys.KEYS_USED, *(part for name, (_, key_id) in records.items() for part in (name, key_id))),
            ("HSET", keys.AGENTS, *(part for item in texts.items() for part in item)),
        )

    def read_agent(self, cluster: str) -> AgentRecord | None:
        """Return the record of one cluster's agent, or None if it is missing or unreadable."""
        return parse_stored(AgentRecord, cluster, self._redis.hget(keys.AGENTS, cluster))

    def read_agents(self) -> dict[str, AgentRecord]:
        """Return all readable records by cluster."""
        return parse_all_stored(AgentRecord, self._redis.hgetall(keys.AGENTS))

    def find_problems(self, clusters: Iterable[ClusterRecord]) -> Mapping[str, str]:
        """Return cluster -> reason for all clusters whose agents' results are refused, sorted by name."""
        used_keys: dict[Any, Any] = self._redis.hgetall(keys.KEYS_USED)
        agents = self.read_agents()
        problems = {
            cluster.name: _describe_problem(cluster, agents.get(cluster.name), used_keys) for cluster in clusters
        }
        return {name: text for name, text in sorted(problems.items()) if text}

    def find_problem(self, cluster: ClusterRecord) -> str:
        """Return why the results of one cluster's agent are refused; empty if they are accepted."""
        used_keys = {cluster.name: self._redis.hget(keys.KEYS_USED, cluster.name)}
        return _describe_problem(cluster, self.read_agent(cluster.name), used_keys)


def _describe_problem(cluster: ClusterRecord, agent: AgentRecord | None, used_keys: Mapping[str, object]) -> str:
    """Return why the results of an agent are refused, or an empty string.

    `used_keys` has the key id of the newest signature by cluster.
    """
    if agent is not None and agent.problem:
        return agent.problem
    used_id = parse_key_id(cluster.name, used_keys.get(cluster.name))
    if used_id is None or not cluster.key_ids or used_id in cluster.key_ids:
        return ""
    return (
        f"its agent was last seen with the credentials {used_id}, which are withdrawn: Redis and the hub refuse it "
        f"until it has the credentials {max(cluster.key_ids)}, which come with the ManifestWork "
        f"{CREDENTIALS_WORK_NAME} in the namespace {cluster.name} of the hub"
    )


def parse_key_id(cluster: str, text: object) -> int | None:
    """Return the stored key id of a cluster's newest signature, or None if it is missing or unreadable."""
    return parse_counter("key id", cluster, text) or None


class KeyRequest(BaseModel):
    """A request to replace a cluster's credentials of `key_id`.

    `rotate` keeps the old credentials valid until the agent has the new ones, `revoke` does not.
    """

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    action: Literal["rotate", "revoke"]
    #: The current key id at the time of the request, which makes the request idempotent.
    key_id: int = Field(ge=1)
    by: str = ""


class AgentKeys:
    """Reads and writes requests for new credentials, and the key ids that agents sign with.

    Methods raise redis.RedisError if Redis is unreachable.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client

    def request_credentials(self, cluster: str, action: Literal["rotate", "revoke"], *, by: str = "") -> KeyRequest:
        """Request new credentials; the hub controller creates them at once. An open request is replaced.

        Raises UnknownClusterError.
        """
        record = Registry(self._redis).read_cluster(cluster)
        if not record.key_ids:
            raise UnknownClusterError(f"cluster {cluster!r} has no credentials yet; try again in a moment")
        request = KeyRequest(action=action, key_id=record.key_ids[0], by=by)
        # The write must succeed even while Redis is full, which may be the reason for a revocation.
        run_atomically(
            self._redis,
            ("HSET", keys.KEY_REQUESTS, cluster, request.model_dump_json()),
            ("LPUSH", keys.HUB_WAKE, "1"),
            ("LTRIM", keys.HUB_WAKE, 0, 0),
        )
        return request

    def read_requests(self) -> dict[str, KeyRequest]:
        """Return the open requests by cluster. Unreadable ones are logged and skipped."""
        return parse_all_stored(KeyRequest, self._redis.hgetall(keys.KEY_REQUESTS))

    def remove_request(self, cluster: str, request: KeyRequest) -> None:
        """Remove a request, unless a newer one has replaced it."""
        # Any, because some methods of a pipeline have no types.
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
                # A newer request arrived. The next check finds that the older request is done.
                log.debug("request for credentials stays until the next check", cluster=cluster)

    def read_used_keys(self) -> dict[str, int]:
        """Return the key id of the newest result's signature by cluster."""
        ids_by_cluster = (
            (str(name), parse_key_id(str(name), text)) for name, text in self._redis.hgetall(keys.KEYS_USED).items()
        )
        return {name: used_id for name, used_id in ids_by_cluster if used_id is not None}

    def read_last_used(self, cluster: str) -> int | None:
        """Return the key id of a cluster's newest signature, or None if it never signed a result."""
        return parse_key_id(cluster, self._redis.hget(keys.KEYS_USED, cluster))

    def record_retired_key(self, cluster: str, key_id: int) -> None:
        """Record a removed cluster's last key id, so that a later cluster of this name starts after it."""
        run_atomically(
            self._redis,
            ("HSET", keys.KEYS_USED, cluster, key_id),
            ("HDEL", keys.KEY_REQUESTS, cluster),
            ("HDEL", keys.AGENTS, cluster),
        )

    def delete_mail_and_queue(self, cluster: str) -> None:
        """Delete a cluster's mailbox and queue, to which an invalid credential may have had access."""
        self._redis.delete(keys.spoke_queue(cluster), *keys.mail_slots(cluster), keys.mail_flag(cluster))

    def delete_unregistered_queues(self) -> list[str]:
        """Delete the queues of clusters that are not registered, and return their names.

        Programs that do not use `dsf.worker.calls` can push into any queue, and Redis has no expiry for a message.
        """
        queues = [str(queue) for queue in self._redis.scan_iter(match=keys.spoke_queue("*"), count=1000, _type="list")]
        registered_queues = {keys.spoke_queue(str(cluster)) for cluster in self._redis.hkeys(keys.CLUSTERS)}
        unregistered_queues = sorted({*queues} - registered_queues)
        if unregistered_queues:
            self._redis.delete(*unregistered_queues)
        return unregistered_queues


def count_waiting_results(client: redis.Redis, clusters: Iterable[str]) -> int:
    """Return the number of results in the mailboxes of these clusters. Raises redis.RedisError."""
    waiting_count = 0
    for batch in split_into_batches(clusters, 500):
        with client.pipeline(transaction=False) as pipe:
            for cluster in batch:
                pipe.exists(*keys.mail_slots(cluster))
            waiting_count += sum(pipe.execute())
    return waiting_count
