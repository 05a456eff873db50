"""Observation of a fleet while `bench.soak` makes faults: a look each second, at all pairs every few seconds."""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bench.fleetworld import INTERVAL, World
from dsf import keys
from dsf.messages import run_time
from dsf.store.agents import count_waiting_results
from dsf.store.pairs import Pairs

#: Seconds between two looks at all pairs, and two lines that say where it is.
_SURVEY, _TELL = 5.0, 60.0
#: Pairs of a look.
_SOME = 200
#: Seconds for which the memory of a process that has just started does not count.
_SETTLED = 30.0
#: Samples of memory from which a trend is read at least: one each second.
_LEAST = 20
#: Intervals after which a score is older than it may be, unless a fault held it up.
FRESH = 2.0
#: How cycles end that are lost to a scorer.
BAD_ENDS = ("lost", "error")

Pair = tuple[str, str]


@dataclass
class Fault:
    """A fault (unix seconds). While it lasts it holds up the scores of these clusters, or none; empty: of all."""

    kind: str
    began: float
    holds_up: bool
    clusters: frozenset[str] = frozenset()
    ended_at: float = float("inf")

    def held_up(self, cluster: str, since: float, until: float) -> float:
        """Return seconds between the two in which it held this cluster up."""
        if not self.holds_up or (self.clusters and cluster not in self.clusters):
            return 0.0
        return max(0.0, min(self.ended_at, until) - max(self.began, since))

    def distance(self, at: float) -> float:
        """Return seconds from the fault to this moment; negative before it."""
        return at - self.began if at < self.began else max(0.0, at - self.ended_at)


@dataclass
class SoakFigures:
    """Observed data. Ages are in seconds."""

    looks: int = 0
    #: Looks that Redis did not answer.
    away: int = 0
    #: Looks with a score older than FRESH intervals.
    old: int = 0
    oldest: float = 0.0
    #: Without what faults held up, of those that were older than FRESH intervals.
    oldest_own: float = 0.0
    #: Where the oldest was seen.
    where: str = ""
    waiting: list[int] = field(default_factory=list)
    #: Bytes by process, and `used_memory` of Redis, with the seconds since the beginning.
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict)


class Judge:
    """A context manager: looks until its block ends."""

    def __init__(self, world: World, good: Sequence[Pair], faults: list[Fault], seed: int) -> None:
        """`faults` may grow."""
        self.seen = SoakFigures()
        #: Cycles of good scorers that were lost, in words.
        self.losses: list[str] = []
        self._world = world
        self._good = good
        self._faults = faults
        self._random = random.Random(seed)
        self._client: redis.Redis = redis.Redis.from_url(
            world.redis_url, decode_responses=True, socket_timeout=10, retry=Retry(NoBackoff(), 0)
        )
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, "judge")
        self._looking: Future[None] | None = None
        self._began = time.monotonic()
        self._since = time.time()
        # Pair -> how many of its cycles were lost when it was last looked at.
        self._lost: dict[Pair, int] = {}
        self._told: set[str] = set()

    def __enter__(self) -> Judge:
        self.survey()
        self._looking = self._thread.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.shutdown()
        assert self._looking is not None
        # Raises what stopped it from looking.
        self._looking.result()

    def survey(self) -> None:
        """Look at all good pairs: how old they are, and whether a cycle was lost. Raises redis.RedisError."""
        ages: dict[Pair, str | None] = {}
        lost: dict[Pair, int] = {}
        for start in range(0, len(self._good), 500):
            part = self._good[start : start + 500]
            with self._client.pipeline(transaction=False) as pipe:
                for pair in part:
                    pipe.hmget(keys.pair_key(*pair), ["score_run", *(f"n:{end}" for end in BAD_ENDS)])
                for pair, (run, *numbers) in zip(part, pipe.execute(), strict=True):
                    ages[pair] = run
                    lost[pair] = sum(int(number or 0) for number in numbers)
        self._age(ages)
        for pair, number in lost.items():
            if number > self._lost.get(pair, number):
                self._explain(pair)
        self._lost |= lost

    def trend(self, name: str, warm_up: float) -> float | None:
        """By how many percent the memory of a process grew from the first tenth of the time after `warm_up` to the
        last one; None when it was seen too seldom."""
        sizes = [size for at, size in self.seen.memory.get(name, ()) if at >= warm_up]
        if len(sizes) < _LEAST:
            return None
        tenth = max(len(sizes) // 10, 1)
        first, last = statistics.median(sizes[:tenth]), statistics.median(sizes[-tenth:])
        return 100 * (last - first) / first

    # --- details ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        tell, survey = self._began + _TELL, self._began + _SURVEY
        while not self._stopped.wait(max(0.0, 1.0 - (time.monotonic() - self._began) % 1.0)):
            self.seen.looks += 1
            resident = self._world.processes.resident()
            self._weigh({name: size for name, (size, seconds) in resident.items() if seconds >= _SETTLED})
            try:
                if time.monotonic() >= survey:
                    survey += _SURVEY
                    self.survey()
                else:
                    self._look()
                self.seen.waiting.append(
                    count_waiting_results(self._client, map(str, self._client.hkeys(keys.CLUSTERS)))
                )
                if resident.get("redis", (0, 0.0))[1] >= _SETTLED:
                    self._weigh({"used by Redis": int(self._client.info("memory")["used_memory"])})
            except redis.RedisError:
                self.seen.away += 1
            if time.monotonic() >= tell:
                tell += _TELL
                self._tell(sum(size for size, _ in resident.values()))

    def _look(self) -> None:
        sampled_pairs = self._random.sample(self._good, min(_SOME, len(self._good)))
        with self._client.pipeline(transaction=False) as pipe:
            for pair in sampled_pairs:
                pipe.hget(keys.pair_key(*pair), "score_run")
            self._age(dict(zip(sampled_pairs, pipe.execute(), strict=True)))

    def _age(self, runs: dict[Pair, str | None]) -> None:
        """Take in how old the scores of these pairs are."""
        now, is_old = time.time(), False
        for (cluster, scorer), run in runs.items():
            # Every pair had a score when the soak began.
            since = run_time(run) if run else self._since - INTERVAL
            age = now - since
            if age > self.seen.oldest:
                self.seen.oldest = age
                self.seen.where = f"{cluster}/{scorer}, {self._nearest(now)}"
            if age > FRESH * INTERVAL:
                is_old = True
                age -= sum(fault.held_up(cluster, since, now) for fault in self._faults[-20:])
            self.seen.oldest_own = max(age, self.seen.oldest_own)
        self.seen.old += is_old

    def _explain(self, pair: Pair) -> None:
        for entry in Pairs(self._client).read_history(*pair)[:10]:
            if entry.outcome in BAD_ENDS and entry.at >= self._since and entry.run not in self._told:
                self._told.add(entry.run)
                why = entry.outcome if entry.outcome == entry.reason else f"{entry.outcome} {entry.reason}"
                self.losses.append(f"{keys.pair(*pair)} {entry.run} {why}, due {self._nearest(entry.at)}")

    def _nearest(self, at: float) -> str:
        """Which fault this moment belongs to."""
        if not self._faults:
            return "before the first fault"
        fault = min(self._faults, key=lambda candidate: abs(candidate.distance(at)))
        distance = fault.distance(at)
        if distance == 0:
            return f"{at - fault.began:.1f} s into {fault.kind}"
        return f"{abs(distance):.1f} s {'before' if distance < 0 else 'after'} {fault.kind}"

    def _weigh(self, sizes: dict[str, int]) -> None:
        for name, size in sizes.items():
            self.seen.memory.setdefault(name, []).append((time.monotonic() - self._began, size))

    def _tell(self, memory: int) -> None:
        kinds = counted(fault.kind for fault in self._faults)
        print(
            f"soak, {(time.monotonic() - self._began) / 60:.0f} min: {len(self._faults)} faults ({kinds}), "
            f"oldest score so far {self.seen.oldest:.0f} s, {len(self.losses)} cycles lost, "
            f"{self.seen.waiting[-1] if self.seen.waiting else 0} results wait, {memory / 2**20:.0f} MiB in all",
            file=sys.stderr,
            flush=True,
        )


def counted(things: Iterable[str]) -> str:
    """`beat 2, hub 1`."""
    return ", ".join(f"{name} {number}" for name, number in sorted(Counter(things).items())) or "none"
