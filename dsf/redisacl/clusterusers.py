"""Reconciles the Redis users of managed clusters, on the server and on its replicas.

Their passwords are derived like the clusters' signing keys: the hub stores none.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

import dsf.log
from dsf.redisacl.rules import cluster_of_user, cluster_user
from dsf.redisacl.users import User
from dsf.redislink.link import Link
from dsf.settings import Settings
from dsf.store.client import connect_to

log = dsf.log.get(__name__)

#: Users set per round trip.
_BATCH = 200


@dataclass
class UserChanges:
    """Clusters whose users `sync` changed."""

    created: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.created or self.changed or self.removed)


class ClusterUsers:
    """The users of managed clusters in one Redis server. Thread-safe.

    Passwords come from the master secret, so nothing is stored and the next `sync` repairs a server that lost
    everything. Methods raise redis.RedisError; all are idempotent. The client's user must be allowed to
    manage users (`dsf-hub`), or be the default user of a server without ACLs of ours.
    """

    def __init__(self, client: redis.Redis, master_secret: bytes) -> None:
        self._redis = client
        self._secret = master_secret
        self._lock = threading.Lock()
        # Each user as it was set.
        self._set_to: dict[str, User] = {}
        # Each user's line in the server's list when that was last read; None until it is.
        self._seen: dict[str, str] | None = None
        self._can_save = True

    def password(self, cluster: str, key_id: int) -> str:
        """Return the password of a cluster: for its agent's Secret only."""
        return derive_password(self._secret, cluster, key_id)

    def ensure(self, cluster: str, key_ids: Iterable[int]) -> bool:
        """Set the cluster's user with the passwords of exactly these key ids; returns whether it changed.

        Costs no round trip when this object has done so before: `sync` detects other changes to a user. The first call
        reads all users, which may be thousands; later ones do not.

        When a password is no longer valid, the user's connections are cut: Redis only checks a password when one
        begins. An agent with a valid password is back within a second and loses nothing.
        Raises ValueError for a wrong name or without a key id.
        """
        user = self._user(cluster, key_ids)
        with self._lock:
            if self._set_to.get(user.name) == user:
                return False
            if self._seen is None:
                self._seen = self._lines()
            before = _hashes(self._seen.get(user.name, ""))
            self._set([user], self._seen)
            if before and before.isdisjoint(user.hashes):
                # A revocation. All else is saved by the next `sync`.
                self._save()
            self._set_to[user.name], self._seen[user.name] = user, user.line()
        if before == set(user.hashes):
            return False
        _log(created=int(not before), changed=int(bool(before)))
        return True

    def remove(self, cluster: str) -> bool:
        """Remove the cluster's user and cut its connections; returns whether it existed."""
        name = cluster_user(cluster)
        with self._lock:
            was_there = bool(self._redis.acl_deluser(name))
            self._set_to.pop(name, None)
            (self._seen or {}).pop(name, None)
            if was_there:
                self._save()
                _log(removed=1)
        return was_there

    def sync(self, key_ids_by_cluster: Mapping[str, Iterable[int]]) -> UserChanges:
        """Set the users of exactly these clusters (name -> valid key ids), and no others.

        The method needs one round trip when nothing changes, whatever the number of clusters.
        """
        users = {cluster: self._user(cluster, key_ids) for cluster, key_ids in key_ids_by_cluster.items()}
        with self._lock:
            lines, last = self._lines(), self._seen or {}
            present = {cluster for name in lines if (cluster := cluster_of_user(name)) is not None}
            changes = UserChanges(removed=sorted(present - set(users)))
            for cluster, user in sorted(users.items()):
                line = lines.get(user.name)
                if line is None:
                    changes.created.append(cluster)
                elif line != last.get(user.name) or self._set_to.get(user.name) != user:
                    changes.changed.append(cluster)
            if not changes:
                return changes
            self._set([users[cluster] for cluster in (*changes.created, *changes.changed)], lines)
            if changes.removed:
                self._redis.acl_deluser(*map(cluster_user, changes.removed))
            self._save()
            self._seen = after = self._lines()
            self._set_to = {user.name: user for user in users.values()}
            # A user that was correct, only not known to this process, is unchanged.
            changes.changed = [c for c in changes.changed if lines[cluster_user(c)] != after.get(cluster_user(c))]
        _log(len(changes.created), len(changes.changed), len(changes.removed))
        return changes

    def _user(self, cluster: str, key_ids: Iterable[int]) -> User:
        passwords = (self.password(cluster, key_id) for key_id in key_ids)
        return User.of_cluster(cluster, *passwords)

    def _lines(self) -> dict[str, str]:
        # `user <name> on #<hash> ...`, for every user.
        return {line.split(" ", 2)[1]: line for line in map(str, self._redis.acl_list())}

    def _set(self, users: list[User], lines: Mapping[str, str]) -> None:
        """Set users that had these lines, and cut the connections with a password that is no longer valid."""
        for start in range(0, len(users), _BATCH):
            pipe: Any = self._redis.pipeline(transaction=False)
            with pipe:
                for user in users[start : start + _BATCH]:
                    pipe.execute_command("ACL SETUSER", user.name, *user.setuser())
                    before = _hashes(lines.get(user.name, ""))
                    # Also without a line: a user of this name may have been created since.
                    if not before or not before <= set(user.hashes):
                        pipe.execute_command("CLIENT KILL", "USER", user.name)
                pipe.execute()

    def _save(self) -> None:
        """Have the server write its ACL file. Without one, users are set again after a restart of the server."""
        if not self._can_save:
            return
        try:
            self._redis.acl_save()
        except redis.ResponseError as error:
            self._can_save = False
            log.info("redis users are not saved by the server", reason=str(error))


def _log(created: int = 0, changed: int = 0, removed: int = 0) -> None:
    if created or changed or removed:
        log.info("redis users of clusters changed", made=created, changed=changed, removed=removed)


def _hashes(line: str) -> set[str]:
    return {word.removeprefix("#") for word in line.split() if word.startswith("#")}


def derive_password(master_secret: bytes, cluster: str, key_id: int) -> str:
    """Return the password of one cluster in Redis for the key id of its signing key.

    Its label differs from that of `dsf.messages.derive_key`: neither reveals the other. 64 hex digits, so that it
    needs no quoting in a URL.
    """
    return hmac.digest(master_secret, f"dsf-redis-password/{key_id}/{cluster}".encode(), "sha256").hex()


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
        """Return the password of a cluster: for its agent's Secret only."""
        return self._main.password(cluster, key_id)

    def ensure(self, cluster: str, key_ids: Sequence[int]) -> None:
        """As `ClusterUsers.ensure`. Raises redis.RedisError when it fails on the server."""
        if self._main.ensure(cluster, key_ids):
            self._on_replicas(lambda users: users.ensure(cluster, key_ids))

    def remove(self, cluster: str) -> None:
        """As `ClusterUsers.remove`."""
        self._main.remove(cluster)
        self._on_replicas(lambda users: users.remove(cluster))

    def sync(self, key_ids_by_cluster: Mapping[str, Sequence[int]]) -> UserChanges:
        """As `ClusterUsers.sync`; the changes are those on the server."""
        changes = self._main.sync(key_ids_by_cluster)
        self._on_replicas(lambda users: users.sync(key_ids_by_cluster))
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
            addresses = self._link.list_replicas()
        except redis.RedisError as error:
            log.warning("replicas of redis cannot be found", error=str(error))
            return
        for removed_address in self._replicas.keys() - set(addresses):
            self._replicas.pop(removed_address)[0].close()
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
