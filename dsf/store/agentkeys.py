"""Credentials of agents as far as Redis knows of them: which ids are used, and new ones that people ask for.

No secret is here. What is valid is in the clusters' records of `dsf.store.registry`; what was delivered, with the
backend of the hub controller. Losing all of this loses nothing but a request that was not done yet.
"""

from __future__ import annotations

from typing import Any, Literal

import redis
from pydantic import BaseModel, ConfigDict, Field, ValidationError

import dsf.log
from dsf import keys
from dsf.errors import UnknownClusterError
from dsf.store.client import at_once, lua
from dsf.store.registry import Registry

log = dsf.log.get(__name__)

#: Elements of the list that wakes the hub controller; one is enough.
_WAKE_LENGTH = 2


class KeyRequest(BaseModel):
    """A request that a cluster have new credentials in place of those of `key_id`.

    `rotate` keeps the old ones until the agent has the new ones; `revoke` does not.
    """

    model_config = ConfigDict(frozen=True)

    v: int = keys.SCHEMA_VERSION
    action: Literal["rotate", "revoke"]
    #: What was current when it was asked for: a request that is done twice changes nothing the second time.
    key_id: int = Field(ge=1)
    by: str = ""


class AgentKeys:
    """Methods raise redis.RedisError when Redis cannot be reached."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._ask = client.register_script(lua("ask"))

    def ask(self, cluster: str, action: Literal["rotate", "revoke"], *, by: str = "") -> KeyRequest:
        """Ask for new credentials; the hub controller makes them at once. A request that is still open is replaced.

        Raises UnknownClusterError.
        """
        record = Registry(self._redis).cluster(cluster)
        if not record.key_ids:
            raise UnknownClusterError(f"cluster {cluster!r} has no credentials yet; try again in a moment")
        request = KeyRequest(action=action, key_id=record.key_ids[0], by=by)
        # A script: it must also work when Redis has been filled up, which may be why this is asked for.
        self._ask(keys=[keys.KEY_REQUESTS, keys.HUB_WAKE], args=[cluster, request.model_dump_json(), _WAKE_LENGTH])
        return request

    def requests(self) -> dict[str, KeyRequest]:
        """Open requests by cluster. One that cannot be read is logged and left out."""
        found: dict[str, KeyRequest] = {}
        for cluster, text in self._redis.hgetall(keys.KEY_REQUESTS).items():
            try:
                found[str(cluster)] = KeyRequest.model_validate_json(str(text))
            except ValidationError as error:
                log.error("request for credentials cannot be read", cluster=cluster, problems=error.error_count())
        return found

    def done(self, cluster: str, request: KeyRequest) -> None:
        """Forget a request, unless there is another one by now."""
        # Not all of its methods have types.
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
                # Another request came; this one is recognised as done when it is met again.
                log.debug("request for credentials stays until the next look", cluster=cluster)

    def used(self) -> dict[str, int]:
        """Cluster -> id of the key that its newest result was signed with."""
        return {str(cluster): int(key_id) for cluster, key_id in self._redis.hgetall(keys.KEYS_USED).items()}

    def last_used(self, cluster: str) -> int | None:
        """The same of one cluster; None when it never signed anything."""
        found = self._redis.hget(keys.KEYS_USED, cluster)
        return None if found is None else int(str(found))

    def retire(self, cluster: str, key_id: int) -> None:
        """The cluster is gone: should one of its name come back, its credentials begin after this id."""
        at_once(
            self._redis,
            ("HSET", keys.KEYS_USED, cluster, key_id),
            ("HDEL", keys.KEY_REQUESTS, cluster),
            ("HDEL", keys.AGENTS, cluster),
        )

    def empty(self, cluster: str) -> None:
        """Remove what came with a credential of the cluster that is not valid any more: its queue and its mail. Whether
        its agent sends by mailbox is to be seen anew."""
        self._redis.delete(keys.spoke_queue(cluster), *keys.mail_slots(cluster))
        self._redis.hdel(keys.AGENTS, cluster)
