"""Detects a cluster's credential that is used to fill or to block Redis, and switches it off.

Redis limits neither the connections of a user nor the size of its commands: 20 connections that send commands with a
million keys each keep Redis busy for seconds. It also keeps texts of its clients in places that have no limit in bytes:
refused commands in ACL LOG, slow commands with the name of their connection in SLOWLOG, and the names of all open
connections. `maxmemory-clients` counts none of these texts, `maxmemory` all: beyond it, Redis refuses the results of
every cluster.

Redis does not tell the memory of a user, and a list of its connections has their names, which may be what fills the
memory. The watch therefore closes the connections of one cluster after the other, and reads what this frees.
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

#: Share of `maxmemory` from which memory is freed.
FULL: Final = 0.8
#: Most connections of a cluster that are not suspicious: an agent has 4.
MOST_CONNECTIONS: Final = 50
#: Most bytes that the connections of a cluster hold: 12 results of 2 MB, and the buffers of the connections.
MOST_BYTES: Final = 32 * 1024 * 1024
#: Bytes of all connections together from which those of clusters are closed, and bytes of a busy connection. Redis
#: counts a quarter of the memory of short keys.
_SUSPICIOUS_BYTES: Final = 16 * 1024 * 1024
_CONNECTION_BYTES: Final = 16 * 1024
#: Number of connections from which those of clusters are closed: of the hub, and of each cluster.
_HUB_CONNECTIONS: Final = 500
_CLUSTER_CONNECTIONS: Final = 12
#: Share of the memory that must be freed to be worth a report.
_USEFUL: Final = 0.1
#: Seconds after which connections are closed again although no misused credential was found.
_PAUSE: Final = 60.0
#: Seconds for which people read of a problem.
_REPORT_SECONDS: Final = 600.0
#: Clusters per round trip. Redis runs so few commands (6,000 bytes) without commands of other clients in between.
#: Memory that another client frees in between would be counted for the wrong cluster.
_BATCH_SIZE: Final = 16
#: Redis' user of connections that have not logged in. Only `maxclients` limits their number. If the hub does not manage
#: users in Redis, all processes of the hub and all agents are this user.
_ANONYMOUS: Final = "default"


class _Usage(NamedTuple):
    """Memory and connections of the server."""

    #: Used bytes, and `maxmemory`, which is 0 if there is none.
    used_bytes: int
    limit: int
    #: Bytes of buffers and of incomplete commands.
    client_bytes: int
    connections: int

    @property
    def is_full(self) -> bool:
        return bool(self.limit) and self.used_bytes >= FULL * self.limit

    @property
    def has_large_clients(self) -> bool:
        return self.client_bytes > _SUSPICIOUS_BYTES + self.connections * _CONNECTION_BYTES


class _HeldResources(NamedTuple):
    """Connections of a cluster, and the bytes that they held."""

    connections: int
    size: int

    @property
    def is_misuse(self) -> bool:
        return self.connections > MOST_CONNECTIONS or self.size > MOST_BYTES

    def __str__(self) -> str:
        return f"{self.connections} connections, {self.size // 1024} KB"


class MisuseWatch:
    """Checks one server periodically. For one thread."""

    def __init__(self, client: redis.Redis, revoke: Callable[[Sequence[str], str], object] | None = None) -> None:
        """The client's user must be allowed to manage users. `revoke` requests new credentials for clusters, with a
        reason; without it, misused credentials are only reported."""
        self._redis = client
        self._revoke = revoke
        self._had_large_clients = False
        #: True if the next check should follow soon.
        self.is_urgent = False
        # time.monotonic() before which connections stay.
        self._next_closing = 0.0
        # Kind of a problem -> sentence, and the monotonic time until which people read it.
        self._reports: dict[str, tuple[str, float]] = {}

    def check(self) -> None:
        """Free memory if Redis is nearly full, and close connections that hold too much.

        Agents whose connections are closed are back within a second and lose nothing. Raises redis.RedisError.
        """
        usage = self._read_usage()
        if usage.is_full:
            usage = self._empty_logs(usage)
        # Act only if two consecutive checks find large clients, because large results may arrive at this moment.
        had_large_clients, self._had_large_clients = self._had_large_clients, usage.has_large_clients
        self.is_urgent = usage.has_large_clients and not had_large_clients
        if self.is_urgent:
            return
        if self._is_suspicious(usage) and time.monotonic() >= self._next_closing:
            if self._redis.acl_whoami() != _ANONYMOUS:
                # Close the connections without a login first, which anybody who reaches the port may open.
                self._redis.client_kill_filter(user=_ANONYMOUS)
                usage = self._read_usage()
            if self._is_suspicious(usage):
                self._close_connections(usage)

    def get_problems(self) -> dict[str, str]:
        """Return sentences for people by kind, each for some minutes."""
        now = time.monotonic()
        return {kind: text for kind, (text, shown_until) in self._reports.items() if now < shown_until}

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
        """Empty the logs of refused and of slow commands, and return the usage afterwards."""
        # Some methods of a pipeline are untyped.
        pipe: Any = self._redis.pipeline(transaction=False)
        with pipe:
            pipe.execute_command("ACL LOG", "RESET")
            pipe.execute_command("SLOWLOG RESET")
            for response in pipe.execute(raise_on_error=False):
                if isinstance(response, redis.RedisError):
                    log.warning("a log of redis cannot be emptied", error=str(response))
        usage_after = self._read_usage()
        if usage_after.used_bytes < (1 - _USEFUL) * usage_before.used_bytes:
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
        """Close the connections of all clusters, and switch off the users of those that held too much."""
        held_by_cluster = self._close_each()
        usage_after = self._read_usage()
        freed_bytes = usage_before.used_bytes - usage_after.used_bytes
        suspects = {cluster: usage for cluster, usage in held_by_cluster.items() if usage.is_misuse}
        self._next_closing = time.monotonic() + (0.0 if suspects else _PAUSE)
        log.warning(
            "connections of agents were closed",
            freed=freed_bytes,
            closed=usage_before.connections - usage_after.connections,
            misused={cluster: str(usage) for cluster, usage in suspects.items()},
        )
        if suspects:
            self._switch_off(suspects)
        elif usage_before.is_full and freed_bytes >= _USEFUL * usage_before.used_bytes:
            self._report(
                MEMORY,
                f"Redis was nearly full ({usage_before.used_bytes} bytes), and connections of agents held "
                f"{freed_bytes} bytes: they were "
                "closed. If this comes again, a cluster's credential is misused",
            )

    def _close_each(self) -> dict[str, _HeldResources]:
        """Close the connections of each cluster, and return what they held."""
        held_by_cluster: dict[str, _HeldResources] = {}
        for clusters in split_into_batches(sorted(Registry(self._redis).read_clusters()), _BATCH_SIZE):
            # A nearly full Redis refuses transactions.
            pipe: Any = self._redis.pipeline(transaction=False)
            with pipe:
                pipe.info("memory")
                for cluster in clusters:
                    pipe.execute_command("CLIENT KILL", "USER", cluster_user(cluster))
                    pipe.info("memory")
                # A server without our users responds with errors.
                responses = pipe.execute(raise_on_error=False)
            used_bytes = [int(info["used_memory"]) for info in responses[::2]]
            for cluster, count, bytes_before, bytes_after in zip(
                clusters, responses[1::2], used_bytes[:-1], used_bytes[1:], strict=True
            ):
                if isinstance(count, int):
                    held_by_cluster[cluster] = _HeldResources(count, bytes_before - bytes_after)
        return held_by_cluster

    def _switch_off(self, suspects: Mapping[str, _HeldResources]) -> None:
        """Refuse the users of these clusters until they have new credentials."""
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
        if self._reports.get(kind, ("", 0.0))[0] != text:
            log.error("redis was filled or blocked", problem=text)
        self._reports[kind] = text, time.monotonic() + _REPORT_SECONDS
