"""Detects a cluster's credentials that are used to fill or to block Redis, and disables them.

Redis limits neither the number of a user's connections nor the size of its commands: 20 connections that send commands
with a million keys each keep Redis busy for seconds. Redis also stores texts of its clients without a limit in bytes:
denied commands in ACL LOG, slow commands with the name of their connection in SLOWLOG, and the names of all open
connections. `maxmemory-clients` does not count these texts, but `maxmemory` does: beyond it, Redis rejects the results
of all clusters.

Redis does not report the memory of a user. A list of its connections would contain their names, which may be the texts
that fill the memory. Therefore the watch closes the connections of one cluster after the other, and reads how much
memory each frees.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import redis

import dsf.log
from dsf.redisacl.rules import cluster_user
from dsf.store.client import split_into_batches
from dsf.store.registry import Registry
from dsf.store.server import CREDENTIALS, MEMORY

log = dsf.log.get(__name__)

#: Share of `maxmemory` from which the watch frees memory.
FULL_SHARE: Final = 0.8
#: Maximum number of connections of a cluster that is not misuse: an agent has 4.
MAX_AGENT_CONNECTIONS: Final = 50
#: Maximum bytes of the connections of a cluster that is not misuse: 12 results of 2 MB, and buffers.
MAX_AGENT_BYTES: Final = 32 * 1024 * 1024
#: Bytes of all connections together, in addition to `_CONNECTION_BYTES` for each, beyond which the watch closes
#: connections. Redis counts a quarter of the memory of short keys.
_SUSPICIOUS_BYTES: Final = 16 * 1024 * 1024
#: Bytes of a busy connection.
_CONNECTION_BYTES: Final = 16 * 1024
#: Number of connections, in addition to `_CLUSTER_CONNECTIONS` for each cluster, beyond which the watch closes those of
#: clusters.
_HUB_CONNECTIONS: Final = 500
_CLUSTER_CONNECTIONS: Final = 12
#: Minimum freed share of the memory that is reported.
_USEFUL_SHARE: Final = 0.1
#: Minimum seconds until connections are closed again, if no misuse was found.
_PAUSE_SECONDS: Final = 60.0
#: Seconds for which a problem is reported.
_REPORT_SECONDS: Final = 600.0
#: Number of clusters in a round trip. Redis executes so few commands (6,000 bytes) without commands of other clients in
#: between. Memory that another client frees in between would be counted for the wrong cluster.
_BATCH_SIZE: Final = 16
#: Redis' user of connections that have not logged in, whose number only `maxclients` limits. If the hub does not manage
#: users in Redis, all processes of the hub and all agents are this user.
_DEFAULT_USER: Final = "default"


class _Usage(NamedTuple):
    """Memory and connections of the server."""

    used_bytes: int
    #: `maxmemory` in bytes; 0 without a limit.
    limit: int
    #: Bytes of buffers and of incomplete commands.
    client_bytes: int
    connections: int

    @property
    def is_full(self) -> bool:
        return bool(self.limit) and self.used_bytes >= FULL_SHARE * self.limit

    @property
    def has_large_clients(self) -> bool:
        return self.client_bytes > _SUSPICIOUS_BYTES + self.connections * _CONNECTION_BYTES


class _ConnectionUsage(NamedTuple):
    """Number of a cluster's connections, and the bytes that closing them has freed."""

    connections: int
    size: int

    @property
    def is_misuse(self) -> bool:
        return self.connections > MAX_AGENT_CONNECTIONS or self.size > MAX_AGENT_BYTES

    def __str__(self) -> str:
        return f"{self.connections} connections, {self.size // 1024} KB"


class MisuseWatch:
    """Checks one server periodically. Instances are not thread-safe."""

    def __init__(self, client: redis.Redis, revoke: Callable[[Sequence[str], str], object] | None = None) -> None:
        """Watch the server of `client`, whose user must be allowed to manage users.

        `revoke` gets clusters and a reason, and requests new credentials for them. If it is None, misused credentials
        are only reported.
        """
        self._redis = client
        self._revoke = revoke
        self._had_large_clients = False
        #: True if the next check should follow soon.
        self.is_urgent = False
        # Earliest time of the next closing of connections by time.monotonic().
        self._next_closing_at = 0.0
        # Kind of a problem -> sentence, and the monotonic time until which it is reported.
        self._reports: dict[str, tuple[str, float]] = {}

    def check(self) -> None:
        """Free memory if Redis is nearly full, and close connections that take too much memory.

        Agents whose connections are closed reconnect within a second and lose nothing. Raises redis.RedisError.
        """
        usage = self._read_usage()
        if usage.is_full:
            usage = self._empty_logs(usage)
        # Act only if two consecutive checks find large clients, because large results may be arriving during one.
        had_large_clients, self._had_large_clients = self._had_large_clients, usage.has_large_clients
        self.is_urgent = usage.has_large_clients and not had_large_clients
        if self.is_urgent:
            return
        if self._is_suspicious(usage) and time.monotonic() >= self._next_closing_at:
            if self._redis.acl_whoami() != _DEFAULT_USER:
                # First close the connections without a login, which any client that reaches the port can open.
                self._redis.client_kill_filter(user=_DEFAULT_USER)
                usage = self._read_usage()
            if self._is_suspicious(usage):
                self._close_connections(usage)

    def get_problems(self) -> dict[str, str]:
        """Return the problems of the last minutes: sentences for users, by kind."""
        now = time.monotonic()
        return {kind: text for kind, (text, expires_at) in self._reports.items() if now < expires_at}

    def _read_usage(self) -> _Usage:
        info: Mapping[str, Any] = self._redis.info("memory", "clients")
        names = "used_memory", "maxmemory", "mem_clients_normal", "connected_clients"
        return _Usage(*(int(info.get(name, 0)) for name in names))

    def _is_suspicious(self, usage: _Usage) -> bool:
        if usage.is_full or usage.has_large_clients:
            return True
        if usage.connections <= _HUB_CONNECTIONS:
            return False
        return usage.connections > _HUB_CONNECTIONS + _CLUSTER_CONNECTIONS * len(Registry(self._redis).read_clusters())

    def _empty_logs(self, usage_before: _Usage) -> _Usage:
        """Empty the logs of denied and of slow commands, and return the usage afterwards."""
        # Some methods of a pipeline are untyped.
        pipe: Any = self._redis.pipeline(transaction=False)
        with pipe:
            pipe.execute_command("ACL LOG", "RESET")
            pipe.execute_command("SLOWLOG RESET")
            for response in pipe.execute(raise_on_error=False):
                if isinstance(response, redis.RedisError):
                    log.warning("a log of redis cannot be emptied", error=str(response))
        usage_after = self._read_usage()
        if usage_after.used_bytes < (1 - _USEFUL_SHARE) * usage_before.used_bytes:
            self._report(
                MEMORY,
                f"Redis was nearly full ({usage_before.used_bytes} bytes), and its logs of refused and of slow "
                "commands took "
                f"{usage_before.used_bytes - usage_after.used_bytes} bytes: they were emptied. A stolen credential "
                "can fill them: ask Redis "
                "with ACL LOG 1 who is refused, and revoke those credentials (dsf credentials revoke); acllog-max-len "
                "and slowlog-max-len should be as in deploy/redis/redis.conf",
            )
        return usage_after

    def _close_connections(self, usage_before: _Usage) -> None:
        """Close the connections of all clusters, and disable the users of clusters that took too much memory."""
        usage_by_cluster = self._close_cluster_connections()
        usage_after = self._read_usage()
        freed_bytes = usage_before.used_bytes - usage_after.used_bytes
        suspects = {cluster: usage for cluster, usage in usage_by_cluster.items() if usage.is_misuse}
        self._next_closing_at = time.monotonic() + (0.0 if suspects else _PAUSE_SECONDS)
        log.warning(
            "connections of agents were closed",
            freed=freed_bytes,
            closed=usage_before.connections - usage_after.connections,
            misused={cluster: str(usage) for cluster, usage in suspects.items()},
        )
        if suspects:
            self._disable_users(suspects)
        elif usage_before.is_full and freed_bytes >= _USEFUL_SHARE * usage_before.used_bytes:
            self._report(
                MEMORY,
                f"Redis was nearly full ({usage_before.used_bytes} bytes), and connections of agents held "
                f"{freed_bytes} bytes: they were "
                "closed. If this comes again, a cluster's credential is misused",
            )

    def _close_cluster_connections(self) -> dict[str, _ConnectionUsage]:
        """Close the connections of all clusters, one cluster after the other. Return the usage of each cluster."""
        usage_by_cluster: dict[str, _ConnectionUsage] = {}
        for clusters in split_into_batches(sorted(Registry(self._redis).read_clusters()), _BATCH_SIZE):
            # Use no transaction, because a nearly full Redis rejects it.
            pipe: Any = self._redis.pipeline(transaction=False)
            with pipe:
                pipe.info("memory")
                for cluster in clusters:
                    pipe.execute_command("CLIENT KILL", "USER", cluster_user(cluster))
                    pipe.info("memory")
                # Ignore errors, which a server without the framework's users returns.
                responses = pipe.execute(raise_on_error=False)
            used_bytes = [int(info["used_memory"]) for info in responses[::2]]
            for cluster, count, bytes_before, bytes_after in zip(
                clusters, responses[1::2], used_bytes[:-1], used_bytes[1:], strict=True
            ):
                if isinstance(count, int):
                    usage_by_cluster[cluster] = _ConnectionUsage(count, bytes_before - bytes_after)
        return usage_by_cluster

    def _disable_users(self, suspects: Mapping[str, _ConnectionUsage]) -> None:
        """Disable the users of these clusters until they have new credentials, and report the problem."""
        cluster_texts = ", ".join(f"{cluster} ({usage})" for cluster, usage in list(suspects.items())[:5])
        if self._revoke is None:
            self._report(
                CREDENTIALS,
                "Clients with the credentials of these clusters held more of Redis than an agent needs: "
                f"{cluster_texts}; "
                "revoke them (dsf credentials revoke --cluster NAME)",
            )
            return
        pipe: Any = self._redis.pipeline(transaction=False)
        with pipe:
            for cluster in suspects:
                pipe.execute_command("ACL SETUSER", cluster_user(cluster), "off")
                pipe.execute_command("CLIENT KILL", "USER", cluster_user(cluster))
            pipe.execute(raise_on_error=False)
        self._report(
            CREDENTIALS,
            "Clients with the credentials of these clusters held more of Redis than an agent needs: "
            f"{cluster_texts}. Their "
            "credentials were revoked, and their agents work again when OCM has delivered new ones. If this comes "
            "again, an attacker can read the new ones on that cluster: set hubAcceptsClient: false",
        )
        self._revoke(list(suspects), f"their Redis users held {'; '.join(map(str, suspects.values()))}")

    def _report(self, kind: str, text: str) -> None:
        """Add a sentence to the problems, and log it if it is new."""
        if self._reports.get(kind, ("", 0.0))[0] != text:
            log.error("redis was filled or blocked", problem=text)
        self._reports[kind] = text, time.monotonic() + _REPORT_SECONDS
