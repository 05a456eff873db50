"""Frees memory of Redis that a cluster's credential can fill outside of its mailbox.

Redis keeps texts of its clients in places that have no limit in bytes: refused commands in ACL LOG, slow commands with
the name of their connection in SLOWLOG, and the names of all open connections. Each text has up to `proto-max-bulk-len`
bytes. `maxmemory-clients` counts none of them, `maxmemory` all: beyond it, Redis refuses the results of every cluster.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import redis

import dsf.log
from dsf.redisacl.rules import cluster_user
from dsf.store.client import batched
from dsf.store.registry import Registry

log = dsf.log.get(__name__)

#: Share of `maxmemory` from which memory is freed.
FULL: Final = 0.8
#: Most connections of a cluster that are not suspicious: an agent has 12 when all its threads write at once.
MOST_CONNECTIONS: Final = 50
#: Share of the memory that closing connections must free to be repeated at the next check.
_USEFUL: Final = 0.1
#: Seconds after which connections are closed again although it did not help, and for which people read of it.
_PAUSE: Final = 600.0
#: Users per round trip.
_BATCH: Final = 100


class MemoryRelief:
    """Checks one server periodically. For one thread."""

    def __init__(self, client: redis.Redis) -> None:
        """The client's user must be allowed to manage users."""
        self._redis = client
        # time.monotonic() before which connections stay.
        self._next_closing = 0.0
        self._text = ""
        self._text_until = 0.0

    def relieve(self) -> str:
        """Free memory if Redis is nearly full. Returns a sentence for people for some minutes, or an empty text.

        Agents whose connections are closed are back within a second and lose nothing. Raises redis.RedisError.
        """
        used, limit = self._memory()
        if limit and used >= FULL * limit:
            self._empty_logs()
            remaining, limit = self._memory()
            if remaining < (1 - _USEFUL) * used:
                self._report(
                    f"Redis was nearly full ({used} bytes), and its logs of refused and of slow commands took "
                    f"{used - remaining} bytes: they were emptied. A stolen credential can fill them: ask Redis with "
                    "ACL LOG 1 who is refused, and revoke those credentials (dsf credentials revoke); acllog-max-len "
                    "and slowlog-max-len should be as in deploy/redis/redis.conf"
                )
            if remaining >= FULL * limit and time.monotonic() >= self._next_closing:
                self._close_connections(remaining)
        return self._text if time.monotonic() < self._text_until else ""

    def _memory(self) -> tuple[int, int]:
        """Used bytes, and `maxmemory`; 0 if there is none."""
        info: Mapping[str, Any] = self._redis.info("memory")
        return int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))

    def _empty_logs(self) -> None:
        # Some of its methods are untyped.
        pipe: Any = self._redis.pipeline(transaction=False)
        with pipe:
            pipe.execute_command("ACL LOG", "RESET")
            pipe.execute_command("SLOWLOG RESET")
            for answer in pipe.execute(raise_on_error=False):
                if isinstance(answer, redis.RedisError):
                    log.warning("a log of redis cannot be emptied", error=str(answer))

    def _close_connections(self, used: int) -> None:
        """Close the connections of all clusters: Redis tells the number of a user's connections only when it closes
        them, or in a list with their names, which may be what fills the memory."""
        counts: dict[str, int] = {}
        for clusters in batched(sorted(Registry(self._redis).clusters()), _BATCH):
            pipe: Any = self._redis.pipeline(transaction=False)
            with pipe:
                for cluster in clusters:
                    pipe.execute_command("CLIENT KILL", "USER", cluster_user(cluster))
                # A server without our users answers with errors.
                answers = pipe.execute(raise_on_error=False)
            counts |= {
                cluster: answer for cluster, answer in zip(clusters, answers, strict=True) if isinstance(answer, int)
            }
        freed = used - self._memory()[0]
        is_useful = freed >= _USEFUL * used
        self._next_closing = time.monotonic() + (0.0 if is_useful else _PAUSE)
        suspects = {cluster: count for cluster, count in counts.items() if count > MOST_CONNECTIONS}
        log.warning("redis is nearly full, connections of agents were closed", freed=freed, many_connections=suspects)
        if is_useful:
            self._report(
                f"Redis was nearly full ({used} bytes), and connections of agents held {freed} bytes: they were "
                f"closed. {_advice(suspects)}"
            )

    def _report(self, text: str) -> None:
        if self._text != text:
            log.error("redis was nearly full", problem=text)
        self._text, self._text_until = text, time.monotonic() + _PAUSE


def _advice(suspects: Mapping[str, int]) -> str:
    """What people should do; `suspects` are numbers of connections by cluster."""
    if not suspects:
        return "If this comes again, a cluster's credential is misused"
    named = ", ".join(f"{cluster} ({count})" for cluster, count in list(suspects.items())[:5])
    return (
        f"Clusters with more than {MOST_CONNECTIONS} of them: {named}; revoke their credentials (dsf credentials "
        "revoke --cluster NAME)"
    )
