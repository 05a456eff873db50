"""A limit that Redis' rules cannot express: connections of a cluster's user.

A check costs little while nothing grows: connections are listed only when there are clearly more than at the last
check, or when few more are possible.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any, Final

import redis

import dsf.log
from dsf.redisacl.rules import cluster_of_user
from dsf.redisacl.users import DEFAULT_OFF
from dsf.store.looping import repeat
from dsf.threads import SupervisedThread

log = dsf.log.get(__name__)

#: Seconds between checks.
EVERY: Final = 5.0
#: Seconds within which a new connection must authenticate.
_NAMELESS: Final = 10
# Growth since the last check from which connections are listed: number, or share.
_MORE, _MORE_SHARE = 50, 0.1
# Share of `maxclients` from which they are always listed.
_NEARLY_FULL = 0.75


class Guard:
    """Checks in a separate thread until it is stopped. A user may have so many `connections`."""

    def __init__(self, client: redis.Redis, *, connections: int) -> None:
        self._redis = client
        self._connections = connections
        self._settled = 0
        self._is_checked = False
        self._stopping = threading.Event()
        self._thread = SupervisedThread(self._run, "redis-guard")

    def start(self) -> None:
        """Start to check every few seconds."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        repeat(self._turn, self._stopping, doing="look after connections in redis", pause=EVERY)

    def _turn(self) -> float:
        if not self._is_checked:
            for problem in missing_limits(self._redis):
                log.warning("redis is not bounded", problem=problem)
            self._is_checked = True
        self.look()
        return EVERY

    def look(self) -> None:
        """Check once and cut any excess. Raises redis.RedisError."""
        info: dict[str, Any] = self._redis.info("clients")
        now, most = int(info["connected_clients"]), int(info.get("maxclients", 0))
        self._settled = min(self._settled, now)
        if now <= self._settled + max(_MORE, _MORE_SHARE * self._settled) and not 0 < _NEARLY_FULL * most <= now:
            return
        surplus = self._surplus()
        pipe: Any = self._redis.pipeline(transaction=False)
        with pipe:
            for number in surplus:
                pipe.execute_command("CLIENT", "KILL", "ID", number)
            pipe.execute(raise_on_error=False)
        self._settled = now - len(surplus)

    def _surplus(self) -> list[int]:
        """Ids of connections to be cut: the newest of a user with too many, and unauthenticated ones."""
        connections: dict[str, list[int]] = defaultdict(list)
        nameless = []
        for one in self._redis.client_list():
            user = str(one.get("user", ""))
            if cluster_of_user(user) is not None:
                connections[user].append(int(one["id"]))
            elif user == "default" and int(one["age"]) >= _NAMELESS:
                nameless.append(int(one["id"]))
        found = nameless if nameless and self._is_default_off() else []
        if found:
            log.warning("connections cut that said no name", count=len(found))
        for user, ids in connections.items():
            newest = sorted(ids)[self._connections :]
            if newest:
                log.warning("connections of a cluster's user cut: it has too many", user=user, count=len(newest))
                found += newest
        return found

    def _is_default_off(self) -> bool:
        """Whether the default user is off: otherwise its connections stay."""
        off = DEFAULT_OFF.split()[:3]
        return any(str(line).split()[:3] == off for line in self._redis.acl_list())


def missing_limits(client: redis.Redis) -> list[str]:
    """Redis' own limits that are missing or wrong, as far as it reports them. Raises redis.RedisError."""
    memory: dict[str, Any] = client.info("memory")
    problems = []
    if int(memory.get("maxmemory", 0)) == 0:
        problems.append("maxmemory is not set: Redis takes all memory there is; deploy/redis/redis.conf has limits")
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        problems.append(f"maxmemory-policy is {policy}: it must be noeviction, everything in Redis is data")
    return problems
