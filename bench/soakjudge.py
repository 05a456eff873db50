"""Observes a fleet while `bench.soak` makes faults: some pairs each second, all pairs every few seconds."""

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

#: Seconds between two checks of all pairs, and between two lines of progress.
_SURVEY, _TELL = 5.0, 60.0
#: Number of pairs in a check.
_SOME = 200
#: Seconds after the start of a process in which its memory does not count.
_SETTLED = 30.0
#: Minimum samples of memory for a trend; there is one each second.
_LEAST = 20
#: Maximum age of a score in intervals, unless a fault delayed it.
FRESH = 2.0
#: Outcomes of cycles without a score.
BAD_ENDS = ("lost", "error")

Pair = tuple[str, str]


@dataclass
class Fault:
    """A fault, with times in unix seconds. If `holds_up`, it delays the scores of `clusters`, or of all if empty."""

    kind: str
    began: float
    holds_up: bool
    clusters: frozenset[str] = frozenset()
    ended_at: float = float("inf")

    def compute_delay(self, cluster: str, start: float, end: float) -> float:
        """Return the seconds from `start` to `end` in which the fault delayed this cluster."""
        if not self.holds_up or (self.clusters and cluster not in self.clusters):
            return 0.0
        return max(0.0, min(self.ended_at, end) - max(self.began, start))

    def compute_distance(self, at: float) -> float:
        """Return the seconds from the fault to this moment; negative before it."""
        return at - self.began if at < self.began else max(0.0, at - self.ended_at)


@dataclass
class SoakFigures:
    """Observed data. Ages are in seconds."""

    checks: int = 0
    #: Checks to which Redis did not respond.
    unreachable: int = 0
    #: Checks with a score older than FRESH intervals.
    old: int = 0
    oldest: float = 0.0
    #: Age of the oldest such score, without the delays by faults.
    oldest_own: float = 0.0
    #: Pair and time of the oldest score.
    oldest_pair: str = ""
    waiting: list[int] = field(default_factory=list)
    #: Bytes by process, and `used_memory` of Redis, with the seconds since the beginning.
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict)


class Judge:
    """Observes the fleet until its block ends. A context manager."""

    def __init__(self, world: World, good: Sequence[Pair], faults: list[Fault], seed: int) -> None:
        """Prepare the observation; `faults` may grow meanwhile."""
        self.seen = SoakFigures()
        #: Lost cycles of good scorers, as texts.
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
        self._observation: Future[None] | None = None
        self._began = time.monotonic()
        self._started_at = time.time()
        # Pair -> number of its lost cycles at the last check.
        self._lost: dict[Pair, int] = {}
        self._reported_runs: set[str] = set()

    def __enter__(self) -> Judge:
        self.check_all_pairs()
        self._observation = self._thread.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.shutdown()
        assert self._observation is not None
        # Raises the error that ended the observation, if there was one.
        self._observation.result()

    def check_all_pairs(self) -> None:
        """Check the age and the lost cycles of all good pairs. Raises redis.RedisError."""
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
        self._record_ages(ages)
        for pair, number in lost.items():
            if number > self._lost.get(pair, number):
                self._explain(pair)
        self._lost |= lost

    def compute_trend(self, name: str, warm_up: float) -> float | None:
        """Return the percentage by which the memory of a process grew from the first tenth of the time after `warm_up`
        to the last; None with too few samples.
        """
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
            self.seen.checks += 1
            resident = self._world.processes.resident()
            self._record_memory({name: size for name, (size, seconds) in resident.items() if seconds >= _SETTLED})
            try:
                if time.monotonic() >= survey:
                    survey += _SURVEY
                    self.check_all_pairs()
                else:
                    self._check_some_pairs()
                self.seen.waiting.append(
                    count_waiting_results(self._client, map(str, self._client.hkeys(keys.CLUSTERS)))
                )
                if resident.get("redis", (0, 0.0))[1] >= _SETTLED:
                    self._record_memory({"used by Redis": int(self._client.info("memory")["used_memory"])})
            except redis.RedisError:
                self.seen.unreachable += 1
            if time.monotonic() >= tell:
                tell += _TELL
                self._print_progress(sum(size for size, _ in resident.values()))

    def _check_some_pairs(self) -> None:
        sampled_pairs = self._random.sample(self._good, min(_SOME, len(self._good)))
        with self._client.pipeline(transaction=False) as pipe:
            for pair in sampled_pairs:
                pipe.hget(keys.pair_key(*pair), "score_run")
            self._record_ages(dict(zip(sampled_pairs, pipe.execute(), strict=True)))

    def _record_ages(self, runs: dict[Pair, str | None]) -> None:
        """Record the ages of these pairs' scores."""
        now, is_old = time.time(), False
        for (cluster, scorer), run in runs.items():
            # Every pair had a score when the soak began.
            scored_at = run_time(run) if run else self._started_at - INTERVAL
            age = now - scored_at
            if age > self.seen.oldest:
                self.seen.oldest = age
                self.seen.oldest_pair = f"{cluster}/{scorer}, {self._describe_nearest_fault(now)}"
            if age > FRESH * INTERVAL:
                is_old = True
                age -= sum(fault.compute_delay(cluster, scored_at, now) for fault in self._faults[-20:])
            self.seen.oldest_own = max(age, self.seen.oldest_own)
        self.seen.old += is_old

    def _explain(self, pair: Pair) -> None:
        for entry in Pairs(self._client).read_history(*pair)[:10]:
            if entry.outcome in BAD_ENDS and entry.at >= self._started_at and entry.run not in self._reported_runs:
                self._reported_runs.add(entry.run)
                why = entry.outcome if entry.outcome == entry.reason else f"{entry.outcome} {entry.reason}"
                self.losses.append(
                    f"{keys.pair(*pair)} {entry.run} {why}, due {self._describe_nearest_fault(entry.at)}"
                )

    def _describe_nearest_fault(self, at: float) -> str:
        """Return the fault nearest to this moment, as a text."""
        if not self._faults:
            return "before the first fault"
        fault = min(self._faults, key=lambda candidate: abs(candidate.compute_distance(at)))
        distance = fault.compute_distance(at)
        if distance == 0:
            return f"{at - fault.began:.1f} s into {fault.kind}"
        return f"{abs(distance):.1f} s {'before' if distance < 0 else 'after'} {fault.kind}"

    def _record_memory(self, sizes: dict[str, int]) -> None:
        for name, size in sizes.items():
            self.seen.memory.setdefault(name, []).append((time.monotonic() - self._began, size))

    def _print_progress(self, memory: int) -> None:
        kinds = format_counts(fault.kind for fault in self._faults)
        print(
            f"soak, {(time.monotonic() - self._began) / 60:.0f} min: {len(self._faults)} faults ({kinds}), "
            f"oldest score so far {self.seen.oldest:.0f} s, {len(self.losses)} cycles lost, "
            f"{self.seen.waiting[-1] if self.seen.waiting else 0} results wait, {memory / 2**20:.0f} MiB in all",
            file=sys.stderr,
            flush=True,
        )


def format_counts(things: Iterable[str]) -> str:
    """Return a text such as `beat 2, hub 1`."""
    return ", ".join(f"{name} {number}" for name, number in sorted(Counter(things).items())) or "none"
