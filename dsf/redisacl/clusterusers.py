"""Reconciles the Redis users of managed clusters, on the server and on its replicas.

The passwords are derived from the master secret, like the clusters' signing keys, so the hub need not store them.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis

import dsf.log
from dsf.redisacl.rules import cluster_user, parse_user_cluster
from dsf.redisacl.users import User
from dsf.redislink.link import Link
from dsf.settings import Settings
from dsf.store.client import make_server_client

log = dsf.log.get(__name__)

#: Number of users that are set in one round trip.
_BATCH_SIZE = 200


@dataclass
class UserChanges:
    """The clusters whose users a `sync` created, changed or removed."""

    created: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.created or self.changed or self.removed)


class ClusterUsers:
    """Manages the users of managed clusters on one Redis server. Thread-safe.

    If a server loses its users, the next `sync` restores them, because passwords are derived from the master secret.
    Methods raise redis.RedisError, and may then be repeated. The client's user must be allowed to manage users:
    `dsf-hub`, or the default user of a server without the framework's ACL file.
    """

    def __init__(self, client: redis.Redis, master_secret: bytes) -> None:
        self._redis = client
        self._secret = master_secret
        self._lock = threading.Lock()
        # Name -> user that this object has set.
        self._current_users: dict[str, User] = {}
        # Name -> line of the user in the server's last list of users; None before the first list.
        self._last_lines: dict[str, str] | None = None
        self._can_save = True

    def derive_password(self, cluster: str, key_id: int) -> str:
        """Return a cluster's password, which only the agent's Secret may contain."""
        return derive_password(self._secret, cluster, key_id)

    def ensure(self, cluster: str, key_ids: Iterable[int]) -> bool:
        """Set the cluster's user with the passwords of exactly these key ids. Return True if the user has changed.

        The first call reads all users, which may be thousands. A repeated call takes no round trip, because `sync`
        detects changes by others.

        If a password becomes invalid, the user's connections are closed, because Redis only checks passwords at the
        start of a connection. An agent with a valid password reconnects within a second and loses nothing. Raises
        ValueError for an invalid name, or without a key id.
        """
        user = self._make_user(cluster, key_ids)
        with self._lock:
            if self._current_users.get(user.name) == user:
                return False
            if self._last_lines is None:
                self._last_lines = self._read_lines()
            hashes_before = _parse_hashes(self._last_lines.get(user.name, ""))
            self._set_users([user], self._last_lines)
            if hashes_before and hashes_before.isdisjoint(user.hashes):
                # Save a revocation immediately, so that it survives a restart. The next `sync` saves other changes.
                self._save()
            self._current_users[user.name], self._last_lines[user.name] = user, user.format_line()
        if hashes_before == set(user.hashes):
            return False
        _log_changes(created_count=int(not hashes_before), changed_count=int(bool(hashes_before)))
        return True

    def remove(self, cluster: str) -> bool:
        """Remove the cluster's user and close its connections. Return True if the user existed."""
        name = cluster_user(cluster)
        with self._lock:
            existed = bool(self._redis.acl_deluser(name))
            self._current_users.pop(name, None)
            (self._last_lines or {}).pop(name, None)
            if existed:
                self._save()
                _log_changes(removed_count=1)
        return existed

    def sync(self, key_ids_by_cluster: Mapping[str, Iterable[int]]) -> UserChanges:
        """Set the users of exactly these clusters (name -> valid key ids), and remove those of other clusters.

        Takes one round trip if all users are correct.
        """
        users = {cluster: self._make_user(cluster, key_ids) for cluster, key_ids in key_ids_by_cluster.items()}
        with self._lock:
            lines, last_lines = self._read_lines(), self._last_lines or {}
            present_clusters = {cluster for name in lines if (cluster := parse_user_cluster(name)) is not None}
            changes = UserChanges(removed=sorted(present_clusters - set(users)))
            for cluster, user in sorted(users.items()):
                line = lines.get(user.name)
                if line is None:
                    changes.created.append(cluster)
                elif line != last_lines.get(user.name) or self._current_users.get(user.name) != user:
                    changes.changed.append(cluster)
            if not changes:
                return changes
            self._set_users([users[cluster] for cluster in (*changes.created, *changes.changed)], lines)
            if changes.removed:
                self._redis.acl_deluser(*map(cluster_user, changes.removed))
            self._save()
            self._last_lines = lines_after = self._read_lines()
            self._current_users = {user.name: user for user in users.values()}
            # Report only users whose line has changed: this object also sets users that another process has already
            # set correctly, because it does not know their lines.
            changes.changed = [
                cluster
                for cluster in changes.changed
                if lines[cluster_user(cluster)] != lines_after.get(cluster_user(cluster))
            ]
        _log_changes(len(changes.created), len(changes.changed), len(changes.removed))
        return changes

    def _make_user(self, cluster: str, key_ids: Iterable[int]) -> User:
        passwords = (self.derive_password(cluster, key_id) for key_id in key_ids)
        return User.of_cluster(cluster, *passwords)

    def _read_lines(self) -> dict[str, str]:
        """Return the users of the server: name -> line in the format of an ACL file, `user <name> on #<hash> ...`."""
        return {line.split(" ", 2)[1]: line for line in map(str, self._redis.acl_list())}

    def _set_users(self, users: list[User], lines: Mapping[str, str]) -> None:
        """Set users, and close the connections of those that lose a password. `lines` are the users' current lines."""
        for start in range(0, len(users), _BATCH_SIZE):
            pipe: Any = self._redis.pipeline(transaction=False)
            with pipe:
                for user in users[start : start + _BATCH_SIZE]:
                    pipe.execute_command("ACL SETUSER", user.name, *user.format_setuser_rules())
                    hashes_before = _parse_hashes(lines.get(user.name, ""))
                    # Also close them if there was no line, because the user may have been created in the meantime.
                    if not hashes_before or not hashes_before <= set(user.hashes):
                        pipe.execute_command("CLIENT KILL", "USER", user.name)
                pipe.execute()

    def _save(self) -> None:
        """Write the server's ACL file.

        After an error response, for example because the server has no ACL file, this object never tries again. A
        restart of Redis then loses the users, and the next `sync` restores them.
        """
        if not self._can_save:
            return
        try:
            self._redis.acl_save()
        except redis.ResponseError as error:
            self._can_save = False
            log.info("redis users are not saved by the server", reason=str(error))


def _log_changes(created_count: int = 0, changed_count: int = 0, removed_count: int = 0) -> None:
    if created_count or changed_count or removed_count:
        log.info("redis users of clusters changed", created=created_count, changed=changed_count, removed=removed_count)


def _parse_hashes(line: str) -> set[str]:
    return {word.removeprefix("#") for word in line.split() if word.startswith("#")}


def derive_password(master_secret: bytes, cluster: str, key_id: int) -> str:
    """Return a cluster's password in Redis for a key id: 64 hex digits, which need no quoting in a URL.

    The password and the signing key of the same id do not reveal each other, because `dsf.messages.derive_key` uses
    another label.
    """
    return hmac.digest(master_secret, f"dsf-redis-password/{key_id}/{cluster}".encode(), "sha256").hex()


class ReplicatedClusterUsers:
    """Manages the users of managed clusters on the server and, behind Sentinel, on its replicas.

    Redis does not replicate users, and a replica may become the primary at any time. As the replicas have the users,
    agents then need not wait for the hub. Errors of replicas are logged, and the next `sync` retries.
    """

    def __init__(self, client: redis.Redis, settings: Settings, master_secret: bytes) -> None:
        """Manage users on the server of `client`, and on its replicas. Raises SettingsError."""
        self._main = ClusterUsers(client, master_secret)
        self._link = Link(settings)
        self._settings = settings
        self._secret = master_secret
        self._replicas: dict[tuple[str, int], tuple[redis.Redis, ClusterUsers]] = {}

    def derive_password(self, cluster: str, key_id: int) -> str:
        """Return a cluster's password, which only the agent's Secret may contain."""
        return self._main.derive_password(cluster, key_id)

    def ensure(self, cluster: str, key_ids: Sequence[int]) -> None:
        """See `ClusterUsers.ensure`. Raises redis.RedisError for the server; logs errors of replicas."""
        if self._main.ensure(cluster, key_ids):
            self._apply_to_replicas(lambda users: users.ensure(cluster, key_ids))

    def remove(self, cluster: str) -> None:
        """See `ClusterUsers.remove`."""
        self._main.remove(cluster)
        self._apply_to_replicas(lambda users: users.remove(cluster))

    def sync(self, key_ids_by_cluster: Mapping[str, Sequence[int]]) -> UserChanges:
        """See `ClusterUsers.sync`. The returned changes are those on the server."""
        changes = self._main.sync(key_ids_by_cluster)
        self._apply_to_replicas(lambda users: users.sync(key_ids_by_cluster))
        return changes

    def close(self) -> None:
        """Close the connections to replicas."""
        for client, _ in self._replicas.values():
            client.close()
        self._replicas.clear()

    def _apply_to_replicas(self, work: Callable[[ClusterUsers], object]) -> None:
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
                work(self._get_replica(host, port))
            except redis.RedisError as error:
                log.warning("users cannot be written to a replica of redis", host=host, port=port, error=str(error))

    def _get_replica(self, host: str, port: int) -> ClusterUsers:
        if (host, port) not in self._replicas:
            client = make_server_client(self._settings, host, port, name="dsf-hub-users")
            self._replicas[host, port] = client, ClusterUsers(client, self._secret)
        return self._replicas[host, port][1]
