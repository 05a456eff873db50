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

#: Every result with a number that is a multiple of this is tracked until it is in the books.
_TRACKED = 50
#: Seconds between two polls for tracked results, and the maximum seconds for which one is tracked.
_LOOK, _LONGEST = 0.02, 120.0
#: Seconds between two portions of a flood.
_PACE = 0.01
#: Seconds before an outbox reconnects while Redis is down, as in `dsf.agent.outbox`.
_RETRY = 1.0
#: Maximum connections that are made at once, because each may wait for a busy server.
_AT_ONCE = 100


class Player:
    """The agents of all clusters."""

    def __init__(self, clusters: Iterable[int], changing: float, flood: str, rate: int) -> None:
        config = settings()
        parts = urlsplit(config.resolved_redis_url())
        self._address = parts.hostname or "", parts.port or 6379, parts.password or ""
        self.changing = changing
        #: Scorers of which half of the cycles fail.
        self.bad: frozenset[str] = frozenset()
        self.counts: Counter[str] = Counter()
        #: Seconds from sending a result to its appearance in the books.
        self.latencies: list[float] = []
        # Without retries, which would only delay the agents while Redis is down.
        self._client = redis.Redis.from_url(config.resolved_redis_url(), retry=Retry(NoBackoff(), 0))
        self._number, self._order = count(), count()
        self._selector = selectors.DefaultSelector()
        # Actions with their time (time.monotonic()).
        self._scheduled: list[tuple[float, int, Callable[[], None]]] = []
        self._longest_wait = MAX_RETRY_SECONDS
        self._tracked: dict[str, tuple[str, float]] = {}
        self._said = b""
        self._master = bytes.fromhex(config.resolved_signing_secret() or "")
        self._keys: dict[str, messages.SigningKey] = {}
        self._agents = {name: PlayedAgent(self, name) for name in (f"cluster-{number:04}" for number in clusters)}
        for agent in self._agents.values():
            self._connect_for_ticks(agent)
            self._connect_for_results(agent)
        self._flood, self._rate = flood, rate
        self._flooding = Connection(*self._address) if flood else None
        with contextlib.suppress(PermissionError):
            # Standard input is a file, which has no further lines.
            self._selector.register(sys.stdin, selectors.EVENT_READ, None)

    def key(self, cluster: str) -> messages.SigningKey:
        """Return the signing key that the hub has delivered."""
        if cluster not in self._keys:
            record: Any = self._client.hget(keys.CLUSTERS, cluster)
            ids = json.loads(record or "{}").get("key_ids") or [1]
            self._keys[cluster] = messages.derive_key(self._master, cluster, ids[0])
        return self._keys[cluster]

    def put(self, cluster: str, scorer: str, run: str) -> None:
        """Count a result that is in its mailbox."""
        self.counts["results"] += 1
        if next(self._number) % _TRACKED == 0:
            self._tracked.setdefault(keys.pair_key(cluster, scorer), (run, time.monotonic()))

    def run(self) -> None:
        """Run the agents until the process ends."""
        report_at = poll_at = flooded = time.monotonic()
        while True:
            for selector_key, _ in self._selector.select(_PACE if self._flooding else _LOOK):
                if selector_key.data is None:
                    self._listen()
                else:
                    self._handle(*selector_key.data)
            now = time.monotonic()
            self._run_scheduled(now)
            if now >= poll_at:
                poll_at = now + _LOOK
                self._check_tracked(now)
            if self._flooding is not None:
                self._send_flood(self._flooding, now - flooded)
                flooded = now
            if now >= report_at:
                report_at = now + 1.0
                summary = {"counts": dict(self.counts), "latencies": self.latencies}
                print(json.dumps(summary), flush=True)
                self.latencies = []

    # --- connections that come and go ------------------------------------------------------------------------------

    def handle_lost_connection(self, agent: PlayedAgent, connection: Connection) -> None:
        """Close a broken connection of this agent, and schedule a new one."""
        self._close(connection)
        if agent.giving is connection:
            agent.giving = None
            self.schedule(_RETRY, lambda: self._connect_for_results(agent))
        else:
            agent.taking = None
            # Like the delay of an agent's worker between two attempts.
            self.schedule(self._longest_wait * random.uniform(0.5, 1.0), lambda: self._connect_for_ticks(agent))

    def _connect_for_ticks(self, agent: PlayedAgent) -> None:
        if agent.is_quiet or (connection := self._connect()) is None:
            self.schedule(self._longest_wait * random.uniform(0.5, 1.0), lambda: self._connect_for_ticks(agent))
            return
        try:
            agent.start_receiving(connection)
        except OSError:
            self.handle_lost_connection(agent, connection)
            return
        self._watch(agent, connection)

    def _connect_for_results(self, agent: PlayedAgent) -> None:
        if agent.is_quiet or (connection := self._connect()) is None:
            self.schedule(_RETRY, lambda: self._connect_for_results(agent))
            return
        try:
            agent.start_sending(connection)
        except OSError:
            agent.giving = connection
            self.handle_lost_connection(agent, connection)
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
                agent.handle_ticks(connection)
            elif connection is agent.giving:
                agent.handle_responses(connection)
        except OSError:
            self.counts["disconnected"] += 1
            self.handle_lost_connection(agent, connection)

    def schedule(self, seconds: float, action: Callable[[], None]) -> None:
        """Run an action after this many seconds."""
        heapq.heappush(self._scheduled, (time.monotonic() + seconds, next(self._order), action))

    def _run_scheduled(self, now: float) -> None:
        for _ in range(_AT_ONCE):
            if not self._scheduled or self._scheduled[0][0] > now:
                return
            heapq.heappop(self._scheduled)[-1]()

    # --- its commands ----------------------------------------------------------------------------------------------

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
                self._silence(float(words[0]), [self._agents[name] for name in words[1:]])
            else:
                raise SystemExit(f"cannot {what}")

    def _silence(self, seconds: float, agents: Sequence[PlayedAgent]) -> None:
        for agent in agents:
            if agent.is_quiet:
                continue
            agent.is_quiet = True
            for connection in (agent.taking, agent.giving):
                if connection is not None:
                    self._selector.unregister(connection.socket)
            self.schedule(seconds, lambda agent=agent: self._wake(agent))  # type: ignore[misc]

    def _wake(self, agent: PlayedAgent) -> None:
        agent.is_quiet = False
        for connection in (agent.taking, agent.giving):
            if connection is not None:
                self._watch(agent, connection)

    # --- polls and floods ------------------------------------------------------------------------------------------

    def _check_tracked(self, now: float) -> None:
        """Check which of the tracked results are in the books."""
        if not self._tracked:
            return
        with self._client.pipeline(transaction=False) as pipe:
            for name in self._tracked:
                pipe.hget(name, "state_run")
            try:
                stored_runs = pipe.execute()
            except redis.RedisError:
                # Redis is down.
                return
        for (name, (run, began)), stored_run in zip(list(self._tracked.items()), stored_runs, strict=True):
            if (stored_run or b"").decode() >= run or now - began > _LONGEST:
                del self._tracked[name]
                self.latencies.append(round(now - began, 3))

    def _send_flood(self, connection: Connection, seconds: float) -> None:
        """Send the part of the flood that belongs into this many seconds."""
        connection.read_responses()
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
            connection.read_responses()
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
