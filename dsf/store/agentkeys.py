"""Agents' credentials in Redis: key ids in use, and requests for new ones.

No secret is here. Valid ids are in the clusters' records of `dsf.store.registry`; deliveries, in the hub controller's
backend. Losing this data loses only open requests.
"""

from __future__ import annotations

from typing import Any, Literal

import redis
from pydantic import BaseModel, ConfigDict, Field

import dsf.log
from dsf import keys
from dsf.errors import UnknownClusterError
from dsf.store.agents import key_id
from dsf.store.client import at_once
from dsf.store.registry import Registry
from dsf.store.unreadable import parsed

log = dsf.log.get(__name__)


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
        # It must also work with a full Redis, which may be the reason for the request.
        at_once(
            self._redis,
            ("HSET", keys.KEY_REQUESTS, cluster, request.model_dump_json()),
            ("LPUSH", keys.HUB_WAKE, "1"),
            ("LTRIM", keys.HUB_WAKE, 0, 0),
        )
        return request

    def requests(self) -> dict[str, KeyRequest]:
        """Open requests by cluster. Unreadable ones are logged and left out."""
        stored = {str(name): str(text) for name, text in self._redis.hgetall(keys.KEY_REQUESTS).items()}
        requests = {name: parsed(KeyRequest, name, text) for name, text in stored.items()}
        return {name: request for name, request in requests.items() if request is not None}

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
                # Another request came; this one is recognised as done at the next check.
                log.debug("request for credentials stays until the next look", cluster=cluster)

    def used(self) -> dict[str, int]:
        """Cluster -> key id of its newest result's signature."""
        stored = ((str(name), key_id(str(name), text)) for name, text in self._redis.hgetall(keys.KEYS_USED).items())
        return {name: used for name, used in stored if used is not None}

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
