"""Plays the agents of a whole fleet in one light process: what Redis and the hub see of them, and no cycle behind it.

    python -m bench.player --clusters N [--changing PERCENT] [--flood CLUSTER --rate N]

Each cluster has two connections, as far as Redis can tell those of an agent: one blocks in a pop of its queue, the
other puts the signed result of each tick at once into its scorer's slot of the mailbox and rings. One that the hub has
not taken gives way to it, as with an agent. `--flood` puts what looks like a result
into the mailbox of that cluster so many times a second, as somebody with a stolen credential can.

Redis (with the master secret) comes from the environment, `DSF_REDIS_URL` and `DSF_SIGNING_SECRET`. Every second it
prints one line of JSON: what it has done until then.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import selectors
import socket
import sys
import time
from collections import Counter, deque
from itertools import count
from urllib.parse import urlsplit

import redis

from dsf import keys, messages, wire
from dsf.settings import settings

ITEMS = 10
#: One of so many results is followed until it is in the books.
_FOLLOWED = 50
#: Seconds between two looks for those, and the longest time for which one is followed.
_LOOK, _LONGEST = 0.02, 120.0
#: Seconds between two portions of a flood.
_PACE = 0.01
_TICK = re.compile(rb'\[\[\\"([^"\\]+)\\",\s*\\"([^"\\]+)\\"\]')


def command(*parts: bytes | str) -> bytes:
    """A command as it travels."""
    texts = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%b\r\n" % (len(text), text) for text in texts)


class Connection:
    """One connection to Redis that never waits; `answers` gives what has come."""

    def __init__(self, host: str, port: int, password: str) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if password:
            self.socket.sendall(command("AUTH", password))
            if self.socket.recv(100) != b"+OK\r\n":
                raise SystemExit("Redis refuses the password")
        self.socket.setblocking(False)
        self._got = b""

    def send(self, data: bytes) -> None:
        """Send; what is sent here fits into the buffers of the system."""
        self.socket.sendall(data)

    def answers(self) -> list[object]:
        """Whole answers that have come: integers, texts, None, and lists of them."""
        try:
            received = self.socket.recv(1 << 20)
        except BlockingIOError:
            return []
        if not received:
            raise SystemExit("Redis has closed a connection")
        self._got += received
        found: list[object] = []
        place = 0
        while (one := _parsed(self._got, place)) is not None:
            place, value = one
            found.append(value)
        self._got = self._got[place:]
        return found


def _parsed(data: bytes, place: int) -> tuple[int, object] | None:
    """The end of the answer that begins here and its value; None while it is not whole."""
    end = data.find(b"\r\n", place)
    if end < 0:
        return None
    kind, text, place = data[place : place + 1], data[place + 1 : end], end + 2
    if kind in b"+-":
        return place, text
    number = int(text)
    if kind == b":":
        return place, number
    if number < 0:
        return place, None
    if kind == b"$":
        return None if len(data) < place + number + 2 else (place + number + 2, data[place : place + number])
    values = []
    for _ in range(number):
        one = _parsed(data, place)
        if one is None:
            return None
        place, value = one
        values.append(value)
    return place, values


class Agent:
    """One cluster's: `taking` blocks in a pop of its queue, `giving` puts results into its mailbox."""

    def __init__(self, player: Player, name: str, key: messages.SigningKey) -> None:
        self.name = name
        self._player = player
        self._key = key
        self.taking, self.giving = player.connect(), player.connect()
        self._slots = keys.mail_slots(name)
        self._bell = keys.mail_bell(name)
        self._pop = command("BRPOP", keys.spoke_queue(name), str(settings().redis_polling_interval))
        self._values: Counter[str] = Counter()
        # Scorer -> its slot; the run that was put there last, and what that one says was superseded.
        self._places: dict[str, int] = {}
        self._held: dict[str, tuple[str, list[str]]] = {}
        #: Runs that gave way, for the next result to say.
        self._superseded: list[str] = []
        # What was sent and not answered, in order, and which of its answers comes next.
        self._sent: deque[tuple[str, str, list[str]]] = deque()
        self._answers = 0
        self.taking.send(self._pop)

    def took(self, answers: list[object]) -> None:
        """A tick has come, or the pop has ended without one."""
        for answer in answers:
            if isinstance(answer, list):
                tick = _TICK.search(answer[1])
                if tick is None:
                    raise SystemExit(f"no tick: {answer[1]!r}")
                self._player.counts["ticks"] += 1
                self._score(tick[1].decode(), tick[2].decode())
            self.taking.send(self._pop)

    def gave(self, answers: list[object]) -> None:
        """Each result has three answers: whether one of its scorer was still there, that it is there, and who heard."""
        for answer in answers:
            number = self._answers
            self._answers = (number + 1) % 3
            if number == 0:
                scorer, run, superseded = self._sent.popleft()
                if answer == 1 and scorer in self._held:
                    before, carried = self._held[scorer]
                    self._superseded += [f"{scorer}/{before}", *carried]
                    self._player.counts["superseded"] += 1
                self._held[scorer] = run, superseded
                self._player.put(self.name, scorer, run)

    def _score(self, scorer: str, run: str) -> None:
        if random.random() < self._player.changing:
            self._values[scorer] = (self._values[scorer] + 1) % 80
        superseded = self._superseded[: messages.MOST_SUPERSEDED]
        del self._superseded[: messages.MOST_SUPERSEDED]
        result = messages.Result.model_construct(
            cluster=self.name,
            scorer=scorer,
            run=run,
            at=time.time(),
            outcome="ok",
            results=[({"node": f"node{number}"}, self._values[scorer] + number + 0.5) for number in range(ITEMS)],
            timings={"fetch": 0.012345, "score": 0.023456, "publish": 0.001234},
            counts={"series": 100, "bytes_in": 221_000, "bytes_out": 221_000, "results": ITEMS},
            agent=f"agent-{self.name}",
            version="1.0.0",
            mail=True,
            superseded=superseded,
        )
        envelope = messages.sign(result, self._key)
        text = repr((self.name, scorer, run))
        message = wire.call(messages.INGEST_TASK, (envelope,), keys.RESULTS_QUEUE, argsrepr=text)
        slot = self._slots[self._places.setdefault(scorer, len(self._places) % len(self._slots))]
        self.giving.send(
            command("EXISTS", slot)
            + command("SET", slot, message)
            + command("PUBLISH", self._bell, slot.rpartition(".")[2])
        )
        self._sent.append((scorer, run, superseded))


class Player:
    """All of them."""

    def __init__(self, clusters: int, changing: float, flood: str, rate: int) -> None:
        config = settings()
        parts = urlsplit(config.resolved_redis_url())
        self._address = parts.hostname or "", parts.port or 6379, parts.password or ""
        self.changing = changing
        self.counts: Counter[str] = Counter()
        #: Seconds from a result's put until it was seen in the books.
        self.latencies: list[float] = []
        self._client = redis.Redis.from_url(config.resolved_redis_url())
        self._number = count()
        self._selector = selectors.DefaultSelector()
        self._followed: dict[str, tuple[str, float]] = {}
        master = bytes.fromhex(config.resolved_signing_secret() or "")
        for number in range(clusters):
            name = f"cluster-{number:04}"
            agent = Agent(self, name, messages.derive_key(master, name, 1))
            self._selector.register(agent.taking.socket, selectors.EVENT_READ, (agent.taking, agent.took))
            self._selector.register(agent.giving.socket, selectors.EVENT_READ, (agent.giving, agent.gave))
        self._flood, self._rate = flood, rate
        self._flooding = self.connect() if flood else None

    def connect(self) -> Connection:
        """One more connection."""
        return Connection(*self._address)

    def put(self, cluster: str, scorer: str, run: str) -> None:
        """A result is in its mailbox."""
        self.counts["results"] += 1
        if next(self._number) % _FOLLOWED == 0:
            self._followed.setdefault(keys.pair_key(cluster, scorer), (run, time.monotonic()))

    def run(self) -> None:
        """Play until the process is ended."""
        tell = look = flooded = time.monotonic()
        while True:
            for chosen, _ in self._selector.select(_PACE if self._flooding else _LOOK):
                connection, handle = chosen.data
                handle(connection.answers())
            now = time.monotonic()
            if now >= look:
                look = now + _LOOK
                self._follow(now)
            if self._flooding is not None:
                self._flood_more(self._flooding, now - flooded)
                flooded = now
            if now >= tell:
                tell = now + 1.0
                said = {"counts": dict(self.counts), "latencies": self.latencies}
                print(json.dumps(said), flush=True)
                self.latencies = []

    def _follow(self, now: float) -> None:
        """See which of the followed results are in the books by now."""
        if not self._followed:
            return
        with self._client.pipeline(transaction=False) as pipe:
            for name in self._followed:
                pipe.hget(name, "state_run")
            answers = pipe.execute()
        for (name, (run, began)), answer in zip(list(self._followed.items()), answers, strict=True):
            if (answer or b"").decode() >= run or now - began > _LONGEST:
                del self._followed[name]
                self.latencies.append(round(now - began, 3))

    def _flood_more(self, connection: Connection, seconds: float) -> None:
        """As much of the flood as belongs into so many seconds."""
        connection.answers()
        if self.counts["flood"] == 0:
            seconds = _PACE
        most = min(int(seconds * self._rate), self._rate)
        item = b'{"headers":' + b"x" * 1000
        slots, bell = keys.mail_slots(self._flood), keys.mail_bell(self._flood)
        for start in range(0, most, 20):
            part = b"".join(
                command("SET", slots[number % len(slots)], item) + command("PUBLISH", bell, str(number % len(slots)))
                for number in range(start, min(start + 20, most))
            )
            connection.socket.setblocking(True)
            connection.send(part)
            connection.socket.setblocking(False)
            connection.answers()
        self.counts["flood"] += most


def main() -> int:
    """Play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, required=True)
    parser.add_argument("--changing", type=float, default=5.0, help="percent of the results")
    parser.add_argument("--flood", default="", metavar="CLUSTER")
    parser.add_argument("--rate", type=int, default=10_000, help="messages of the flood per second")
    arguments = parser.parse_args()
    Player(arguments.clusters, arguments.changing / 100, arguments.flood, arguments.rate).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
