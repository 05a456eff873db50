"""Issues, rotates and withdraws credentials of agents: signing keys and Redis users.

A cluster's key ids are stored with its delivery (`Backend.get_delivered_key_ids`), so that neither a lost Redis nor a
new hub forgets a withdrawn credential. Keys and passwords are derived from the master secret and stored nowhere.

A departed cluster keeps its credentials for a grace period. If it is created again in that time, it gets new
credentials, and the old ones stay valid for an overlap, as in a rotation. A revocation has no grace period and no
overlap.

A rotation loses no cycle: Redis and the results worker accept the new credentials before the hub delivers them to the
agent, and the old credentials are removed after the agent has used the new ones. Each step is idempotent, so that a hub
can repeat it after a crash at any point.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import redis

import dsf.log
from dsf.backends.protocol import Backend, Credentials
from dsf.errors import BackendError, SettingsError
from dsf.hub.registrar import Registrar
from dsf.messages import derive_key
from dsf.process import hubclock
from dsf.redisacl.clusterusers import ReplicatedClusterUsers
from dsf.redisacl.keyids import KeyIds
from dsf.redislink import address
from dsf.settings import Settings
from dsf.store.agents import AgentKeys, KeyRequest
from dsf.store.registry import ClusterRecord

log = dsf.log.get(__name__)

#: Minimum seconds for which the old credentials of a cluster stay valid in addition to the new ones. Kubernetes updates
#: a mounted Secret within some 90 s; until then the agent connects with the old password.
OVERLAP = 180.0


class AgentCredentials:
    """Issues and rotates agents' credentials. Thread-safe if each cluster is handled by one thread at a time."""

    def __init__(
        self,
        backend: Backend,
        registrar: Registrar,
        client: redis.Redis,
        settings: Settings,
    ) -> None:
        """Call `begin` before any other method. Raises SettingsError."""
        self._backend = backend
        self._registrar = registrar
        self._keys = AgentKeys(client)
        self._secret = b""
        self._settings = settings
        # Read the values now to report a wrong setting at startup.
        self._read_shared_values()
        self._users: ReplicatedClusterUsers | None = None
        # Shared files at the last call of `have_changed`.
        self._last_shared_files: object = None
        # Seconds between two checks of a rotation in progress.
        self._check_interval = min(max(OVERLAP / 10, 0.5), 10.0)
        # Guards `_ids`, `_withdrawn_clusters` and the users in Redis, which change together.
        self._lock = threading.Lock()
        # Cluster -> the key ids that Redis accepts.
        self._ids: dict[str, KeyIds] = {}
        # Clusters with permanently withdrawn credentials; an older plan or a delivery may still contain these clusters.
        self._withdrawn_clusters: set[str] = set()
        # Cluster -> request of a user; None until the requests are read.
        self._requests: dict[str, KeyRequest] | None = None
        self._client = client

    def begin(self, master_secret: bytes) -> None:
        """Derive all credentials from this secret.

        Raises SettingsError if the hub manages users of Redis and uses another database than 0.
        """
        self._secret = master_secret
        if self._settings.redis_manage_users:
            if address.parse(self._settings.resolved_redis_url()).db:
                raise SettingsError(
                    "DSF_REDIS_MANAGE_USERS: users of Redis are of the whole server, and agents reach database 0 only; "
                    "end DSF_REDIS_URL in /0, or give this hub a Redis of its own"
                )
            self._users = ReplicatedClusterUsers(self._client, self._settings, master_secret)

    def ensure(self, cluster: str, uid: str, *, deliver: bool = True) -> float | None:
        """Make the cluster's credentials valid, and deliver them if `deliver` is True.

        Returns the seconds until the next check of a rotation in progress, or None. Without Redis only previously valid
        credentials are delivered. Raises BackendError and redis.RedisError.
        """
        request: KeyRequest | None = None
        try:
            registered_ids = self._registrar.get_cluster(cluster).key_ids
            request = self._get_request(cluster)
            ids = self._settle_ids(cluster, uid, registered_ids, request)
        except redis.RedisError:
            key_ids = self._ids.get(cluster) or self._backend.get_delivered_key_ids(cluster)
            if key_ids is not None and deliver:
                self._deliver(cluster, key_ids)
            raise
        if deliver:
            self._deliver(cluster, ids)
        if request is not None and request.key_id < ids.current:
            self._keys.remove_request(cluster, request)
        return self._check_interval if ids.previous is not None else None

    def retain(self, cluster: str, *, deliver: bool) -> None:
        """Keep the credentials of a temporarily absent cluster valid, unless they are revoked.

        Does nothing for an unknown cluster. Raises BackendError and redis.RedisError.
        """
        record = self._registrar.get_cluster(cluster)
        if record.key_ids:
            self.ensure(cluster, record.uid, deliver=deliver)

    def withdraw(self, cluster: str) -> None:
        """Withdraw the credentials of a permanently departed cluster: delete its user and close its connections.

        The credentials never become valid again. Does nothing for an unknown cluster. Raises redis.RedisError.
        """
        registered_ids = self._registrar.get_cluster(cluster).key_ids
        with self._lock:
            self._withdrawn_clusters.add(cluster)
            ids = self._ids.get(cluster)
            current = ids.current if ids is not None else max(registered_ids, default=0)
            if not current:
                return
            if self._users is not None:
                self._users.remove(cluster)
            self._keys.delete_mail_and_queue(cluster)
            self._keys.record_retired_key(cluster, current)
            self._ids.pop(cluster, None)
        log.info("credentials of a cluster withdrawn", cluster=cluster, key_id=current)

    def sync(self, clusters: Mapping[str, str]) -> set[str]:
        """Make the users in Redis match these clusters (name -> uid); return the clusters whose users were wrong.

        Raises BackendError and redis.RedisError.
        """
        if self._users is None:
            return set()
        with self._lock:
            served_clusters = (
                (cluster, uid) for cluster, uid in clusters.items() if cluster not in self._withdrawn_clusters
            )
            cluster_ids = ((cluster, self._find_acceptable_ids(cluster, uid)) for cluster, uid in served_clusters)
            changes = self._users.sync({cluster: ids.valid for cluster, ids in cluster_ids if ids is not None})
            for cluster in changes.removed:
                self._keys.delete_mail_and_queue(cluster)
        return {*changes.created, *changes.changed, *changes.removed}

    def delete_unregistered_queues(self) -> None:
        """Delete the queues of clusters that are not registered. Raises redis.RedisError."""
        # Lock, so that a cluster that is registered at this moment keeps its queue.
        with self._lock:
            queues = self._keys.delete_unregistered_queues()
        if queues:
            log.warning("queues of unknown clusters deleted", count=len(queues), first=queues[:5])

    def have_changed(self) -> bool:
        """Return True if the files shared by all agents changed since the last call."""
        previous_files = self._last_shared_files
        try:
            self._last_shared_files = self._read_shared_values()
        except SettingsError as error:
            self._last_shared_files = str(error)
        return self._last_shared_files != previous_files

    def read_requests(self) -> set[str]:
        """Read requests by users; return their clusters. Raises redis.RedisError."""
        requests = self._keys.read_requests()
        self._requests = requests
        return set(requests)

    def close(self) -> None:
        """Close the connection to Redis for users, if it was opened."""
        if self._users is not None:
            self._users.close()

    def _get_request(self, cluster: str) -> KeyRequest | None:
        if self._requests is None:
            # Read the requests before any credential becomes valid, because one of them may be revoked.
            self.read_requests()
        return (self._requests or {}).get(cluster)

    def _settle_ids(
        self, cluster: str, uid: str, registered_ids: tuple[int, ...], request: KeyRequest | None
    ) -> KeyIds:
        """Make Redis and the results worker accept the currently valid credentials, and return their ids."""
        now = hubclock.now()
        existing_ids = None
        is_recreated = self._is_recreated(cluster, uid)
        if is_recreated:
            log.info("a cluster was deleted and made again", cluster=cluster)
        if is_recreated and cluster not in self._ids:
            # Withdraw without an overlap, because the time of the deletion is unknown.
            self.withdraw(cluster)
            # Remove the delivery, which contains the valid ids, before the registration, because a crash after the
            # registration would leave it in place.
            self._backend.remove_credentials(cluster)
        else:
            existing_ids = self._find_valid_ids(cluster, registered_ids)
        ids_before = existing_ids or self._create_ids(cluster, now)
        ids = ids_before.rotate(now) if is_recreated and existing_ids is not None else ids_before
        if ids.previous is not None:
            ids = ids.end_overlap_if_due(now, self._keys.read_last_used(cluster), min_age=OVERLAP)
        if request is not None and request.key_id == ids.current:
            if request.action == "revoke":
                ids = ids.revoke(now)
            elif ids.previous is None:
                # Rotate only after the end of an earlier rotation, during which the agent may lack the current
                # credentials.
                ids = ids.rotate(now)
        with self._lock:
            self._withdrawn_clusters.discard(cluster)
            if self._users is not None:
                self._users.ensure(cluster, ids.valid)
            if ids_before.current not in ids.valid:
                # The user can no longer add data, so delete the data before other writes, which may lack memory.
                self._keys.delete_mail_and_queue(cluster)
            elif existing_ids is None:
                # Delete ticks that were sent before this cluster existed, because they must not run on it.
                self._keys.delete_mail_and_queue(cluster)
            self._registrar.put_cluster(ClusterRecord(name=cluster, uid=uid, key_ids=ids.valid, key_since=ids.since))
            self._ids[cluster] = ids
        if ids != ids_before:
            log.info(
                "credentials of a cluster changed", cluster=cluster, valid=list(ids.valid), before=ids_before.valid
            )
        return ids

    def _find_valid_ids(self, cluster: str, registered_ids: tuple[int, ...]) -> KeyIds | None:
        """Return the valid key ids of a cluster from memory, its delivery, or the registry in Redis, or None."""
        key_ids = self._ids.get(cluster) or self._backend.get_delivered_key_ids(cluster)
        return key_ids or (KeyIds(max(registered_ids)) if registered_ids else None)

    def _is_recreated(self, cluster: str, uid: str) -> bool:
        """Return True if the registry has an earlier cluster of the same name, with another uid."""
        registered_uid = self._registrar.get_cluster(cluster).uid
        return bool(registered_uid and uid and registered_uid != uid)

    def _find_acceptable_ids(self, cluster: str, uid: str) -> KeyIds | None:
        """Return the credentials of a cluster that Redis must accept.

        Revoked credentials must not become valid again, not even briefly after a crash between the two steps of a
        revocation.
        """
        if cluster not in self._ids and self._is_recreated(cluster, uid):
            return None
        ids, request = (
            self._find_valid_ids(cluster, self._registrar.get_cluster(cluster).key_ids),
            self._get_request(cluster),
        )
        if ids is not None and request is not None and (request.action, request.key_id) == ("revoke", ids.current):
            return ids.revoke(hubclock.now())
        return ids

    def _create_ids(self, cluster: str, now: float) -> KeyIds:
        """Return key ids for a new cluster, which differ from those of a removed cluster of the same name."""
        last_id = self._keys.read_last_used(cluster) or 0
        return KeyIds(last_id + 1, None, now)

    def _deliver(self, cluster: str, ids: KeyIds) -> None:
        password = self._users.derive_password(cluster, ids.current) if self._users is not None else ""
        key = derive_key(self._secret, cluster, ids.current).dump()
        try:
            shared_values = self._read_shared_values()
        except SettingsError as error:
            # Do not deliver a part, because the agent's pod would wait for the missing Secret.
            raise BackendError(str(error)) from None
        self._backend.deliver_credentials(cluster, Credentials(ids, key, password, *shared_values))

    def _read_shared_values(self) -> tuple[str, str]:
        """Return the values shared by all agents: Sentinel password and pull Secret. Raises SettingsError."""
        return self._settings.resolved_agent_sentinel_password() or "", self._settings.resolved_agent_pull_secret()
