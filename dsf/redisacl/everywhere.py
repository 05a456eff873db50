"""Users of managed clusters on the server and on its replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import redis

import dsf.log
from dsf.redisacl.clusterusers import ClusterUsers, UserChanges
from dsf.redislink.link import Link
from dsf.settings import Settings
from dsf.store.client import connect_to

log = dsf.log.get(__name__)


class UsersEverywhere:
    """`ClusterUsers` for Redis behind Sentinel; without Sentinel the same as for one server.

    Redis does not replicate users, and any replica may become the primary at any moment: with users on it already,
    agents can log in without waiting for the hub. Failures on a replica are repaired by the next `sync`.
    """

    def __init__(self, client: redis.Redis, settings: Settings, master_secret: bytes) -> None:
        """`client` is connected to the server. Raises SettingsError."""
        self._main = ClusterUsers(client, master_secret)
        self._link = Link(settings)
        self._settings = settings
        self._secret = master_secret
        self._replicas: dict[tuple[str, int], tuple[redis.Redis, ClusterUsers]] = {}

    def password(self, cluster: str, key_id: int) -> str:
        """The password of a cluster: for its agent's Secret only."""
        return self._main.password(cluster, key_id)

    def ensure(self, cluster: str, key_ids: Iterable[int]) -> bool:
        """As `ClusterUsers.ensure`. Raises redis.RedisError when it fails on the server."""
        ids = tuple(key_ids)
        changed = self._main.ensure(cluster, ids)
        if changed:
            self._on_replicas(lambda users: users.ensure(cluster, ids))
        return changed

    def remove(self, cluster: str) -> bool:
        """As `ClusterUsers.remove`."""
        was_there = self._main.remove(cluster)
        self._on_replicas(lambda users: users.remove(cluster))
        return was_there

    def sync(self, wanted: Mapping[str, Iterable[int]]) -> UserChanges:
        """As `ClusterUsers.sync`; the changes are those on the server."""
        listed = {cluster: tuple(key_ids) for cluster, key_ids in wanted.items()}
        changes = self._main.sync(listed)
        self._on_replicas(lambda users: users.sync(listed))
        return changes

    def close(self) -> None:
        """Close the connections to replicas."""
        for client, _ in self._replicas.values():
            client.close()
        self._replicas.clear()

    def _on_replicas(self, work: Callable[[ClusterUsers], object]) -> None:
        if not self._link.address.is_sentinel:
            return
        try:
            addresses = self._link.replicas()
        except redis.RedisError as error:
            log.warning("replicas of redis cannot be found", error=str(error))
            return
        for gone in self._replicas.keys() - set(addresses):
            self._replicas.pop(gone)[0].close()
        for host, port in addresses:
            try:
                work(self._replica(host, port))
            except redis.RedisError as error:
                log.warning("users cannot be written to a replica of redis", host=host, port=port, error=str(error))

    def _replica(self, host: str, port: int) -> ClusterUsers:
        if (host, port) not in self._replicas:
            client = connect_to(self._settings, host, port, name="dsf-hub-users")
            self._replicas[host, port] = client, ClusterUsers(client, self._secret)
        return self._replicas[host, port][1]
