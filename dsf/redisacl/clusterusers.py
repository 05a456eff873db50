"""Reconciles the Redis users of managed clusters, on the server and on its replicas.

Their passwords are derived like the clusters' signing keys: the hub stores none.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterable, Mapping
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

#: Users set or removed per round trip.
_BATCH = 200


@dataclass
class UserChanges:
    """Clusters whose users `sync` changed."""

    made: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.made or self.changed or self.removed)


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
        # User -> (what it was set to, its line in the server's ACL list), to detect changes quickly.
        self._known: dict[str, tuple[User, str]] = {}
        self._can_save = True
        # User -> hashes of its passwords, as all users were read the first time: by whoever came before.
        self._found: dict[str, set[str]] | None = None

    def password(self, cluster: str, key_id: int) -> str:
        """The password of a cluster: for its agent's Secret only."""
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
            known = self._known.get(user.name)
            if known is not None and known[0] == user:
                return False
            if self._found is None:
                self._found = {name: _hashes(line) for name, line in self._lines().items()}
            before = set(known[0].hashes) if known is not None else self._found.get(user.name, set())
            self._make(user, before)
        return before != set(user.hashes)

    def remove(self, cluster: str) -> bool:
        """Remove the cluster's user and cut its connections; returns whether it existed."""
        name = cluster_user(cluster)
        with self._lock:
            was_there = bool(self._redis.acl_deluser(name))
            self._known.pop(name, None)
            (self._found or {}).pop(name, None)
            if was_there:
                self._save()
        if was_there:
            log.info("redis users of clusters changed", made=0, changed=0, removed=1)
        return was_there

    def sync(self, wanted: Mapping[str, Iterable[int]]) -> UserChanges:
        """Set the users of exactly these clusters (name -> valid key ids), and no others.

        One round trip when nothing changes, whatever the number of clusters.
        """
        users = {cluster: self._user(cluster, key_ids) for cluster, key_ids in wanted.items()}
        with self._lock:
            lines = self._lines()
            present = {cluster for name in lines if (cluster := cluster_of_user(name)) is not None}
            changes = UserChanges(removed=sorted(present - set(users)))
            todo = []
            for cluster, user in sorted(users.items()):
                line = lines.get(user.name)
                if line is None:
                    changes.made.append(cluster)
                elif self._known.get(user.name) != (user, line):
                    changes.changed.append(cluster)
                else:
                    continue
                todo.append(user)
            self._set(todo, lines)
            self._delete(changes.removed)
            # Whoever is not known from now on is new.
            self._found = {}
            if not changes:
                return changes
            self._save()
            after = self._lines()
            self._known |= {user.name: (user, after[user.name]) for user in todo if user.name in after}
            # A user that was correct, only not known to this process, is unchanged.
            changes.changed = [c for c in changes.changed if lines[cluster_user(c)] != after.get(cluster_user(c))]
        if changes:
            log.info(
                "redis users of clusters changed",
                made=len(changes.made),
                changed=len(changes.changed),
                removed=len(changes.removed),
            )
        return changes

    def _user(self, cluster: str, key_ids: Iterable[int]) -> User:
        passwords = (self.password(cluster, key_id) for key_id in key_ids)
        return User.of_cluster(cluster, *passwords)

    def _make(self, user: User, before: set[str]) -> None:
        """Set a user whose passwords had these hashes, without reading all users. The lock is held.

        The next `sync` has the server save it; a revocation, which leaves no old password, is saved at once.
        """
        is_withdrawn = not before <= set(user.hashes)
        pipe: Any = self._redis.pipeline(transaction=False)
        with pipe:
            pipe.execute_command("ACL SETUSER", user.name, *user.setuser())
            # In case an unknown user of this name exists.
            if is_withdrawn or not before:
                pipe.execute_command("CLIENT KILL", "USER", user.name)
            pipe.execute()
        if is_withdrawn and before.isdisjoint(user.hashes):
            self._save()
        self._known[user.name] = (user, "")
        if before != set(user.hashes):
            log.info("redis users of clusters changed", made=int(not before), changed=int(bool(before)), removed=0)

    def _lines(self) -> dict[str, str]:
        # `user <name> on #<hash> ...`, for every user.
        return {line.split(" ", 2)[1]: line for line in map(str, self._redis.acl_list())}

    def _set(self, users: list[User], lines: Mapping[str, str]) -> None:
        for start in range(0, len(users), _BATCH):
            pipe: Any = self._redis.pipeline(transaction=False)
            with pipe:
                for user in users[start : start + _BATCH]:
                    pipe.execute_command("ACL SETUSER", user.name, *user.setuser())
                    if _hashes(lines.get(user.name, "")) - set(user.hashes):
                        pipe.execute_command("CLIENT KILL", "USER", user.name)
                pipe.execute()

    def _delete(self, clusters: list[str]) -> None:
        for start in range(0, len(clusters), _BATCH):
            names = [cluster_user(cluster) for cluster in clusters[start : start + _BATCH]]
            self._redis.acl_deluser(*names)
            for name in names:
                self._known.pop(name, None)

    def _save(self) -> None:
        """Have the server write its ACL file. Without one, users are set again after a restart of the server."""
        if not self._can_save:
            return
        try:
            self._redis.acl_save()
        except redis.ResponseError as error:
            self._can_save = False
            log.info("redis users are not saved by the server", reason=str(error))


def _hashes(line: str) -> set[str]:
    return {word.removeprefix("#") for word in line.split() if word.startswith("#")}


def derive_password(master_secret: bytes, cluster: str, key_id: int) -> str:
    """The password of one cluster in Redis for the key id of its signing key.

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
