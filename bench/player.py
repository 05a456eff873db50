"""Plays the agents of a whole fleet in one light process: what Redis and the hub see of them, and no cycle behind it.

    python -m bench.player --clusters N [--first NUMBER] [--changing PERCENT] [--flood CLUSTER --rate N]

Each cluster has two connections, as far as Redis can tell those of an agent: one blocks in a pop of its queue, the
other puts the signed result of each tick at once into the mailbox and rings. A score that the hub has not taken gives
way to its scorer's next one, and a reason for having none waits for a slot, as with an agent. When Redis goes away it
is connected to again as an agent does it, and results that were not answered are put again. A tick that came too late
ends as skipped (`expired`). `--flood` puts what looks like a result into the mailbox of that cluster so many times a
second, as somebody with a stolen credential can.

Redis (with the master secret) comes from the environment, `DSF_REDIS_URL` and `DSF_SIGNING_SECRET`. Every second it
prints one line of JSON: what it has done until then. Lines on its standard input change what it does:

    bad SCORER ...              from now on half of the cycles of these scorers fail
    quiet SECONDS CLUSTER ...   these agents do nothing for so long, as processes that are stopped
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import os
import random
import selectors
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bench.playedagent import PlayedAgent
from bench.redisline import Connection, command
from dsf import keys, messages
from dsf.redislink.broker import MAX_RETRY_SECONDS
from dsf.settings import settings

#: Every so many results, one is followed until it is in the books.
_FOLLOWED = 50
#: Seconds between two looks for those, and the longest time for which one is followed.
_LOOK, _LONGEST = 0.02, 120.0
#: Seconds between two portions of a flood.
_PACE = 0.01
#: Seconds before an outbox tries again while Redis is away, as `dsf.agent.outbox` has it.
_RETRY = 1.0
#: Connections that are made in one go: each may have to wait for a server that is busy.
_AT_ONCE = 100


class Player:
    """All of them."""

    def __init__(self, clusters: Iterable[int], changing: float, flood: str, rate: int) -> None:
        config = settings()
        parts = urlsplit(config.resolved_redis_url())
        self._address = parts.hostname or "", parts.port or 6379, parts.password or ""
        self.changing = changing
        #: Scorers of which half of the cycles fail.
        self.bad: frozenset[str] = frozenset()
        self.counts: Counter[str] = Counter()
        #: Seconds from a result's put until it was seen in the books.
        self.latencies: list[float] = []
        # While Redis is away nothing is to be waited for.
        self._client = redis.Redis.from_url(config.resolved_redis_url(), retry=Retry(NoBackoff(), 0))
        self._number, self._order = count(), count()
        self._selector = selectors.DefaultSelector()
        # When (time.monotonic()) what is to be done.
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._longest_wait = MAX_RETRY_SECONDS
        self._followed: dict[str, tuple[str, float]] = {}
        self._said = b""
        self._master = bytes.fromhex(config.resolved_signing_secret() or "")
        self._keys: dict[str, messages.SigningKey] = {}
        self._agents = {name: PlayedAgent(self, name) for name in (f"cluster-{number:04}" for number in clusters)}
        for agent in self._agents.values():
            self._take(agent)
            self._give(agent)
        self._flood, self._rate = flood, rate
        self._flooding = Connection(*self._address) if flood else None
        with contextlib.suppress(PermissionError):
            # A file, which says nothing more.
            self._selector.register(sys.stdin, selectors.EVENT_READ, None)

    def key(self, cluster: str) -> messages.SigningKey:
        """Return the one that the hub has delivered."""
        if cluster not in self._keys:
            record: Any = self._client.hget(keys.CLUSTERS, cluster)
            ids = json.loads(record or "{}").get("key_ids") or [1]
            self._keys[cluster] = messages.derive_key(self._master, cluster, ids[0])
        return self._keys[cluster]

    def put(self, cluster: str, scorer: str, run: str) -> None:
        """A result is in its mailbox."""
        self.counts["results"] += 1
        if next(self._number) % _FOLLOWED == 0:
            self._followed.setdefault(keys.pair_key(cluster, scorer), (run, time.monotonic()))

    def run(self) -> None:
        """Play until the process is ended."""
        tell = look = flooded = time.monotonic()
        while True:
            for selector_key, _ in self._selector.select(_PACE if self._flooding else _LOOK):
                if selector_key.data is None:
                    self._listen()
                else:
                    self._handle(*selector_key.data)
            now = time.monotonic()
            self._catch_up(now)
            if now >= look:
                look = now + _LOOK
                self._follow(now)
            if self._flooding is not None:
                self._flood_more(self._flooding, now - flooded)
                flooded = now
            if now >= tell:
                tell = now + 1.0
                summary = {"counts": dict(self.counts), "latencies": self.latencies}
                print(json.dumps(summary), flush=True)
                self.latencies = []

    # --- connections that come and go ------------------------------------------------------------------------------

    def lost(self, agent: PlayedAgent, connection: Connection) -> None:
        """A connection of this agent is of no use any more; there will be another one."""
        self._close(connection)
        if agent.giving is connection:
            agent.giving = None
            self.later(_RETRY, lambda: self._give(agent))
        else:
            agent.taking = None
            # As its worker waits between two tries.
            self.later(self._longest_wait * random.uniform(0.5, 1.0), lambda: self._take(agent))

    def _take(self, agent: PlayedAgent) -> None:
        if agent.is_quiet or (connection := self._connect()) is None:
            self.later(self._longest_wait * random.uniform(0.5, 1.0), lambda: self._take(agent))
            return
        try:
            agent.take_from(connection)
        except OSError:
            self.lost(agent, connection)
            return
        self._watch(agent, connection)

    def _give(self, agent: PlayedAgent) -> None:
        if agent.is_quiet or (connection := self._connect()) is None:
            self.later(_RETRY, lambda: self._give(agent))
            return
        try:
            agent.give_over(connection)
        except OSError:
            agent.giving = connection
            self.lost(agent, connection)
            return
        self._watch(agent, connection)

    def _connect(self) -> Connection | None:
        try:
            return Connection(*self._address)
        except OSError:
            self.counts["refused"] += 1
            return None

    def _watch(self, agent: PlayedAgent, connection: Connection) -> None:
        self._selector.register(connection.socket, selectors.EVENT_READ, (agent, connection))

    def _close(self, connection: Connection) -> None:
        if connection.socket in self._selector.get_map():
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def _handle(self, agent: PlayedAgent, connection: Connection) -> None:
        try:
            if connection is agent.taking:
                agent.took(connection)
            elif connection is agent.giving:
                agent.gave(connection)
        except OSError:
            self.counts["disconnected"] += 1
            self.lost(agent, connection)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do this in so many seconds."""
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), action))

    def _catch_up(self, now: float) -> None:
        for _ in range(_AT_ONCE):
            if not self._later or self._later[0][0] > now:
                return
            heapq.heappop(self._later)[-1]()

    # --- what it is told -------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        got = os.read(sys.stdin.fileno(), 1 << 16)
        if not got:
            self._selector.unregister(sys.stdin)
        *lines, self._said = (self._said + got).split(b"\n")
        for line in lines:
            what, *words = line.decode().split()
            if what == "bad":
                self.bad = frozenset(words)
            elif what == "quiet":
                self._be_quiet(float(words[0]), [self._agents[name] for name in words[1:]])
            else:
                raise SystemExit(f"cannot {what}")

    def _be_quiet(self, seconds: float, agents: Sequence[PlayedAgent]) -> None:
        for agent in agents:
            if agent.is_quiet:
                continue
            agent.is_quiet = True
            for connection in (agent.taking, agent.giving):
                if connection is not None:
                    self._selector.unregister(connection.socket)
            self.later(seconds, lambda agent=agent: self._wake(agent))  # type: ignore[misc]

    def _wake(self, agent: PlayedAgent) -> None:
        agent.is_quiet = False
        for connection in (agent.taking, agent.giving):
            if connection is not None:
                self._watch(agent, connection)

    # --- looking, flooding -----------------------------------------------------------------------------------------

    def _follow(self, now: float) -> None:
        """See which of the followed results are in the books by now."""
        if not self._followed:
            return
        with self._client.pipeline(transaction=False) as pipe:
            for name in self._followed:
                pipe.hget(name, "state_run")
            try:
                answers = pipe.execute()
            except redis.RedisError:
                # It is away.
                return
        for (name, (run, began)), answer in zip(list(self._followed.items()), answers, strict=True):
            if (answer or b"").decode() >= run or now - began > _LONGEST:
                del self._followed[name]
                self.latencies.append(round(now - began, 3))

    def _flood_more(self, connection: Connection, seconds: float) -> None:
        """As much of the flood as belongs into so many seconds."""
        connection.answers()
        if self.counts["flood"] == 0:
            seconds = _PACE
        due = min(int(seconds * self._rate), self._rate)
        item = b'{"headers":' + b"x" * 1000
        slots, flag = keys.mail_slots(self._flood), keys.mail_flag(self._flood)
        for start in range(0, due, 20):
            part = b"".join(
                command("SET", slots[number % len(slots)], item) + command("SET", flag, "1")
                for number in range(start, min(start + 20, due))
            )
            connection.socket.setblocking(True)
            connection.send(part)
            connection.socket.setblocking(False)
            connection.answers()
        self.counts["flood"] += due


def main() -> int:
    """Play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--changing", type=float, default=5.0, help="percent of the results")
    parser.add_argument("--flood", default="", metavar="CLUSTER")
    parser.add_argument("--rate", type=int, default=10_000, help="messages of the flood per second")
    arguments = parser.parse_args()
    clusters = range(arguments.first, arguments.first + arguments.clusters)
    Player(clusters, arguments.changing / 100, arguments.flood, arguments.rate).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
