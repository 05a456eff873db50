"""The hub's processes, Redis and the played fleet of `bench.fleet`, and measurements of them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import psutil
import redis
import requests

from bench.common import ROOT, read_cpu_seconds
from bench.fleetprocesses import Processes
from bench.hub import SCORERS, HubFleet
from dsf import keys
from dsf.messages import run_time
from dsf.settings import make_child_environment
from dsf.store.agents import count_waiting_results
from dsf.store.pairs import OUTCOMES, Pairs
from dsf.store.runs import HISTORY_LENGTH
from dsf.store.schedule import ScheduleStore
from dsf.up.embedded_redis import EmbeddedRedis
from dsf.up.ports import Ports
from dsf.up.supervisor import Supervisor

#: Seconds; the interval in the scoring APIs' /config.
INTERVAL = 30
SECRET = "5e" * 32
#: Seconds between two scrapes, between two polls of waiting results, and between two reads of all scores.
_SCRAPE, _LOOK, _SURVEY = 30.0, 0.5, 5.0
_PATIENCE = 900.0
#: Seconds between two checks of the CPU that a throttled worker has used.
_DUTY = 0.005
_FILL = """
for i = 3, #ARGV do
    local key = ARGV[1] .. ARGV[i]
    -- The oldest: the rows of lost runs, which come late, are several times as long.
    local row = redis.call('LINDEX', key, -1)
    for _ = redis.call('LLEN', key) + 1, row and tonumber(ARGV[2]) or 0 do
        redis.call('LPUSH', key, row)
    end
end
"""


@dataclass
class FleetFigures:
    """Data of a measurement. `cores` and `memory` (bytes) are by process."""

    seconds: float = 0.0
    cycles: int = 0
    cores: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    #: Upper bounds of the buckets with the median and the 99th percentile of beat's lag, in seconds.
    lag: tuple[float, float] = (0.0, 0.0)
    #: Bytes that Redis received for each cycle.
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    scrape_bytes: int = 0
    scrape_seconds: float = 0.0


@dataclass(frozen=True)
class Mix:
    """Commands for each cycle: those from clients, and those in scripts."""

    outer: float
    inside: float
    names: dict[str, float]


@dataclass(frozen=True)
class Totals:
    """Totals of all pairs, after the last run has ended."""

    scheduled: int
    finished: int
    ticks: int
    text: str
    #: Cycles without an outcome, or with more than one, pair by pair.
    wrong: int


class Agents(ABC):
    """The agents of all clusters."""

    def __init__(self) -> None:
        #: Seconds from sending a result to its appearance in the books, for a sample of results.
        self.latencies: list[float] = []

    @property
    @abstractmethod
    def counts(self) -> Counter[str]:
        """Counters, with `ticks` and `results`, up to about now."""

    def is_up_to_date(self) -> bool:
        """True if `counts` includes everything before the first call of this method."""
        return True

    def send_command(self, *words: object) -> None:
        """Send a command that changes the agents' behaviour; see `bench.player`."""
        raise SystemExit(f"only played agents do this, leave out --real: {' '.join(map(str, words))}")

    @abstractmethod
    def stop(self) -> None:
        """End the agents."""


class PlayerProcess(Agents):
    """A process of `bench.player`, and its reports."""

    def __init__(self, *arguments: str, environment: dict[str, str], log: Path) -> None:
        super().__init__()
        command = [sys.executable, "-m", "bench.player", *arguments]
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._counts: Counter[str] = Counter()
        self._reports = 0
        self._asked_at: int | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            self._counts = Counter(message["counts"])
            self.latencies += message["latencies"]
            self._reports += 1

    def is_up_to_date(self) -> bool:
        """See Agents. The first report after the call may be outdated."""
        if self._asked_at is None:
            self._asked_at = self._reports
        return self._reports >= self._asked_at + 2

    @property
    def counts(self) -> Counter[str]:
        """Return the counters of the newest report."""
        return self._counts

    def send_command(self, *words: object) -> None:
        """See Agents."""
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)

    def stop(self) -> None:
        """See Agents."""
        self.process.terminate()
        self.process.wait(30)


class World:
    """A fleet of one size. A context manager, which ends all processes."""

    def __init__(self, folder: Path, api: str, clusters: int, workers: int, redis_server: Path | None = None) -> None:
        """Prepare the fleet; `redis_server` is a program that replaces the wheel's Valkey."""
        self.folder = folder
        self.processes = Processes(folder)
        self._supervisor = Supervisor(folder, lambda _: None)
        ports = Ports(lambda _: None)
        self._server = EmbeddedRedis(folder / "redis", ports.any())
        self._port = ports.any()
        program = self._server.program()
        # An open file for each connection. On the command line, so that the setting survives a restart.
        limits = ("--maxclients", str(12 * clusters + 200), "--maxmemory", "8gb")
        command = (str(redis_server), *program.command[1:]) if redis_server else program.command
        self._redis = replace(program, command=(*command, *limits))
        self.start_redis()
        pid = self._supervisor.pid(self._redis.name)
        self._fleet = HubFleet(folder, self._server, pid, api, clusters)
        self.client: redis.Redis = self._fleet.client
        self.clusters = self._fleet.clusters
        #: Folder of the `dir` backend's objects.
        self.out = self._fleet.folder / "_out"
        self._workers = workers
        #: True if one process has all services of the hub; must be set before `bring_up`.
        self.single = False
        # At most 100 first runs and writes per second.
        self._patience = max(_PATIENCE, clusters * SCORERS / 25)
        self.pairs = [(name, f"scorer-{number}") for name in self.clusters for number in range(SCORERS)]
        self._player: Agents | None = None
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        try:
            if self._player is not None:
                self._player.stop()
            self.processes.close()
        finally:
            self._supervisor.stop_all()
            self.client.close()

    # --- bringing it up --------------------------------------------------------------------------------------------

    def bring_up(self) -> None:
        """Start everything, and wait until every pair has its object and one more interval has passed."""
        self._prepare()
        if self.single:
            self._run("hub", target="all", listen_port=self._port)
        else:
            self._run("beat", target="beat")
            self._run("hub", target="controller")
            self._run("web", target="web", listen_port=self._port)
            for _ in range(self._workers):
                self._run("results", target="results")
        self._player = self._agents()
        self._wait_until(lambda: self._count_writes() >= len(self.pairs), "every object once")
        time.sleep(INTERVAL)

    @property
    def hub_processes(self) -> tuple[str, ...]:
        """Names of the hub's processes."""
        return ("hub",) if self.single else ("beat", "hub", "web", "results")

    def _count_writes(self) -> int:
        """Return the number of scores that the writer has written."""
        return int(self.client.hget(keys.WRITE_STATS, "written") or 0)

    def _agents(self) -> Agents:
        """Start the agents."""
        return PlayerProcess(
            *("--clusters", str(len(self.clusters))),
            environment=self._environment(role="agent", cluster="cluster-0000"),
            log=self.folder / "player.log",
        )

    def _prepare(self) -> None:
        """Write the users' objects: clusters, scorers, and the configuration."""
        self._fleet.write_manifests()
        # A link, so that a fault can replace it in one step.
        objects = self.folder / "objects"
        objects.mkdir()
        self.out.mkdir(exist_ok=True)
        (self.out / "clusters").symlink_to(objects)

    def _backend(self) -> dict[str, object]:
        """Return the settings of the backend."""
        return {"backend": "dir", "manifests": self._fleet.folder}

    @property
    def player(self) -> Agents:
        """The agents."""
        assert self._player is not None
        return self._player

    @property
    def redis_url(self) -> str:
        """URL of Redis."""
        return self._server.url

    def start_redis(self) -> None:
        """Start Redis with its stored data, and wait until it serves. Must run in the main thread."""
        self._supervisor.start(self._redis)
        self._supervisor.wait_ready(120)
        self.processes.adopt("redis", self._supervisor.pid(self._redis.name))

    def stop_redis(self) -> None:
        """Send SIGTERM to Redis, which stores its data, and wait until it has ended."""
        process = self.processes.release("redis")
        process.terminate()
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.05)
        self._supervisor.stop(self._redis.name)

    def _run(self, name: str, **values: object) -> None:
        self.processes.start(name, "dsf.hub", self._environment(role="hub", probe_port=0, **values))

    def _environment(self, **values: object) -> dict[str, str]:
        defaults: dict[str, object] = {
            "redis_url": self._server.url,
            "signing_secret": SECRET,
            "log_level": "WARNING",
            **self._backend(),
        }
        return make_child_environment(**defaults | values)

    def _wait_until(self, is_so: Any, what: str) -> None:
        deadline = time.monotonic() + self._patience
        while not is_so():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come in {self._patience:.0f} s")
            time.sleep(0.5)

    # --- reads -----------------------------------------------------------------------------------------------------

    def watch(self, seconds: float) -> FleetFigures:
        """Measure the fleet for this many seconds, with a scrape every 30 s."""
        fleet_figures = FleetFigures()
        self.player.latencies.clear()
        cpu_before, began = self.processes.cpu(), time.monotonic()
        stats_before, results_before = self.client.info("stats"), self.player.counts["results"]
        lags = self._lags()
        scraped: list[tuple[int, float]] = []
        scraper = self.make_scraper(began + seconds, scraped)
        while time.monotonic() < began + seconds:
            fleet_figures.waiting.append(self.count_waiting_results())
            for name, rss in self.processes.memory().items():
                fleet_figures.memory[name] = max(rss, fleet_figures.memory.get(name, 0))
            time.sleep(_LOOK)
        scraper.join(60)
        fleet_figures.seconds = time.monotonic() - began
        cpu_after, stats_after = self.processes.cpu(), self.client.info("stats")
        fleet_figures.cores = {name: (cpu_after[name] - cpu_before[name]) / fleet_figures.seconds for name in cpu_after}
        fleet_figures.cycles = self.player.counts["results"] - results_before
        fleet_figures.lag = _quantiles(self._lags() - lags)
        for side in ("input", "output"):
            field_name = f"total_net_{side}_bytes"
            bytes_per_cycle = (stats_after[field_name] - stats_before[field_name]) / max(fleet_figures.cycles, 1)
            setattr(fleet_figures, "bytes_in" if side == "input" else "bytes_out", bytes_per_cycle)
        fleet_figures.latencies = list(self.player.latencies)
        if scraped:
            fleet_figures.scrape_bytes, fleet_figures.scrape_seconds = max(scraped)
        return fleet_figures

    def commands(self, seconds: float) -> Mix:
        """Count the commands during this many seconds, one by one. This slows Redis down, so it is a separate
        measurement.
        """
        outer_commands: Counter[str] = Counter()
        inside: Counter[str] = Counter()
        results_before = self.player.counts["results"]
        with self.client.monitor() as monitor:  # type: ignore[no-untyped-call]
            connection: Any = monitor.connection
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                line = connection.read_response()
                head, _, rest = line.partition("] ")
                (inside if head.endswith(" lua") else outer_commands)[rest.split(" ", 1)[0].strip('"').upper()] += 1
        time.sleep(1.1)
        cycles = max(self.player.counts["results"] - results_before, 1) * seconds / (seconds + 1.1)
        names = {f"{name} in scripts": number / cycles for name, number in inside.most_common(12)}
        names |= {name: number / cycles for name, number in outer_commands.most_common(20)}
        return Mix(
            outer_commands.total() / cycles, inside.total() / cycles, {name: round(n, 2) for name, n in names.items()}
        )

    def overload(self, seconds: float, needed: float) -> dict[str, float]:
        """Give the results workers half of `needed` cores for this many seconds, then all, and wait until scores are
        fresh.
        """
        overload_ended = threading.Event()
        share = needed / 2 / self._workers
        thread = threading.Thread(target=self._throttle_workers, args=(share, overload_ended), daemon=True)
        ticks_before, began, overload_start = self.player.counts["ticks"], time.monotonic(), time.time()
        cycles_before = self._count_ok_cycles()
        thread.start()
        ages: list[float] = []
        # Until then, scores have the ages of the time before.
        while time.monotonic() < began + seconds:
            time.sleep(_SURVEY)
            if time.monotonic() > began + 2 * INTERVAL:
                ages += self.list_score_ages()
        ticks = self.player.counts["ticks"] - ticks_before
        scores = self._count_ok_cycles() - cycles_before
        overload_ended.set()
        thread.join()
        began, overload_end = time.monotonic(), time.time()
        # A score may be as old as its interval and the duration of its cycle.
        self._wait_until(lambda: max(self.list_score_ages()) <= INTERVAL + 2, "scores of all pairs to be fresh")
        normal = time.monotonic() - began
        ages.sort()
        gaps = sorted(self._iterate_gaps(overload_start, overload_end))
        return {
            "cores": share * self._workers,
            "oldest": ages[-1],
            "p99": ages[int(0.99 * len(ages))],
            "gap": gaps[int(0.99 * len(gaps))],
            "longest": gaps[-1],
            "scores": scores / max(ticks, 1),
            "normal": normal,
        }

    def _iterate_gaps(self, start: float, end: float) -> Iterator[float]:
        """Yield for each pair the longest time, in intervals, between two cycles of this window that became scores."""
        for pair in self.pairs:
            scored = sorted(entry.at for entry in Pairs(self.client).read_history(*pair) if entry.outcome == "ok")
            yield max(later - at for at, later in pairwise(scored) if later > start and at < end) / INTERVAL

    def _throttle_workers(self, share: float, overload_ended: threading.Event) -> None:
        """Stop each results worker whenever it has used its share of a core, until it may continue."""
        workers = self.processes.of("results")
        cpu_before, began = [read_cpu_seconds(worker) for worker in workers], time.monotonic()
        try:
            while not overload_ended.wait(_DUTY):
                for worker, seconds_before in zip(workers, cpu_before, strict=True):
                    may_run = read_cpu_seconds(worker) - seconds_before < share * (time.monotonic() - began)
                    worker.send_signal(signal.SIGCONT if may_run else signal.SIGSTOP)
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGCONT)

    def kill_hub(self) -> dict[str, float]:
        """Kill the single process of the hub, start it a second later, and wait until every score is fresh.

        Returns seconds since the kill until the first result was ingested (`back`) and until the score of each pair
        was at most an interval old (`fresh`), and the results that were waiting at most (`waiting`).
        """
        start_again = self.processes.kill("hub")
        killed_at, ok_before = time.monotonic(), self._count_ok_cycles()
        time.sleep(1)
        start_again()
        self._wait_until(lambda: self._count_ok_cycles() > ok_before, "a result after the kill")
        back = time.monotonic() - killed_at
        waiting: list[int] = []

        def is_fresh() -> bool:
            waiting.append(self.count_waiting_results())
            return max(self.list_score_ages()) <= INTERVAL + 2

        self._wait_until(is_fresh, "scores of all pairs to be fresh")
        return {"back": back, "fresh": time.monotonic() - killed_at, "waiting": float(max(waiting))}

    def flood(self, seconds: float) -> dict[str, Any]:
        """Send 10,000 messages per second into one cluster's mailbox for this many seconds."""
        flooding = PlayerProcess(
            *("--clusters", "0", "--flood", "cluster-0000"),
            environment=self._environment(role="agent", cluster="cluster-0000"),
            log=self.folder / "player.log",
        )
        self._wait_until(lambda: flooding.counts["flood"] > 0, "the flood")
        cpu_before, began, sent_before = self.processes.cpu(), time.monotonic(), flooding.counts["flood"]
        self.player.latencies.clear()
        time.sleep(seconds)
        ordered_latencies, now = sorted(self.player.latencies), self.processes.cpu()
        flooding.stop()
        seconds_taken = time.monotonic() - began
        cores = ", ".join(f"{name} {1000 * (now[name] - cpu_before[name]) / seconds_taken:.0f}" for name in now)
        return {
            "rate": (flooding.counts["flood"] - sent_before) / seconds_taken,
            "p50": ordered_latencies[len(ordered_latencies) // 2],
            "p99": ordered_latencies[min(int(0.99 * len(ordered_latencies)), len(ordered_latencies) - 1)],
            "text": f"mCPU: {cores}",
        }

    def read_totals(self) -> Totals:
        """Stop beat, or pause everything, wait for the last run, and return the totals."""
        if self.single:
            for scorer in {scorer for _, scorer in self.pairs}:
                ScheduleStore(self.client).set_override(f"*/{scorer}", paused=True)
        else:
            self.processes.stop("beat")
        self._wait_until(lambda: self.client.zcard(keys.OPEN_RUNS) == 0, "the last run to end")
        self._wait_until(self.player.is_up_to_date, "the agents' last counts")
        totals: Counter[str] = Counter()
        why: Counter[str] = Counter()
        wrong = 0
        for state in Pairs(self.client).read_states(self.pairs):
            totals["scheduled"] += state.scheduled
            wrong += abs(state.open)
            for outcome in OUTCOMES:
                totals[outcome] += state.count(outcome)
            why.update({f"{stage}: {reason}": number for (stage, reason), number in state.read_error_counts().items()})
            why.update({f"skipped: {reason}": number for reason, number in state.read_skip_counts().items()})
        stats = {str(name): str(text) for name, text in self.client.hgetall(keys.BEAT_STATS).items()}
        ticks = sum(int(text) for name, text in stats.items() if name == "ticks" or name.startswith("skipped:"))
        text = ", ".join(f"{outcome} {totals[outcome]}" for outcome in OUTCOMES if totals[outcome])
        text += "".join(f"; {reason} {number}" for reason, number in why.most_common())
        return Totals(totals["scheduled"], sum(totals[outcome] for outcome in OUTCOMES), ticks, text, wrong)

    def bytes_per_pair(self) -> float:
        """Return the bytes of Redis for each pair, without clients, with histories of maximum length."""
        self.player.stop()
        self.fill_histories()
        memory = self.client.info("memory")
        buffers = memory["mem_clients_normal"] + memory.get("mem_aof_buffer", 0)
        return float(memory["used_memory"] - memory["used_memory_startup"] - buffers) / len(self.pairs)

    def fill_histories(self) -> None:
        """Extend all histories to their maximum length, with copies of their entries."""
        fill = self.client.register_script(_FILL)
        prefix = keys.history_key("", "").removesuffix("/")
        for start in range(0, len(self.pairs), 100):
            fill(args=[prefix, HISTORY_LENGTH, *(keys.pair(*pair) for pair in self.pairs[start : start + 100])])

    # --- details ---------------------------------------------------------------------------------------------------

    def count_waiting_results(self) -> int:
        """Return the number of results in the mailboxes."""
        return count_waiting_results(self.client, sorted({cluster for cluster, _ in self.pairs}))

    def _count_ok_cycles(self) -> int:
        return sum(state.count("ok") for state in Pairs(self.client).read_states(self.pairs))

    def list_score_ages(self) -> list[float]:
        """Return the age in seconds of each pair's newest score, since it was due."""
        ages = []
        for start in range(0, len(self.pairs), 1000):
            with self.client.pipeline(transaction=False) as pipe:
                for pair in self.pairs[start : start + 1000]:
                    pipe.hget(keys.pair_key(*pair), "score_run")
                ages += [time.time() - run_time(run) for run in pipe.execute()]
        return ages

    def _lags(self) -> Counter[str]:
        stats = {str(name): str(text) for name, text in self.client.hgetall(keys.BEAT_STATS).items()}
        return Counter({bound: int(stats.get(f"lag:{bound}", "0")) for bound in (*keys.LAG_BOUNDS, "+Inf")})

    def make_scraper(self, end: float, scrapes: list[tuple[int, float]] | None = None) -> threading.Thread:
        """Return a thread that scrapes the page every 30 s until `end` (time.monotonic()), as a Prometheus would.

        `scrapes` gets bytes and seconds of each scrape.
        """
        thread = threading.Thread(target=self._scrape, args=(end, [] if scrapes is None else scrapes), daemon=True)
        thread.start()
        return thread

    def _scrape(self, end: float, scrapes: list[tuple[int, float]]) -> None:
        with requests.Session() as session:
            session.trust_env = False
            while (began := time.monotonic()) < end and not self._stopped.is_set():
                # The process may be restarting.
                with contextlib.suppress(requests.RequestException):
                    response = session.get(f"http://127.0.0.1:{self._port}/metrics", timeout=120)
                    scrapes.append((len(response.content), time.monotonic() - began))
                self._stopped.wait(max(0.0, min(_SCRAPE, end - time.monotonic())))


def _quantiles(lags: Counter[str]) -> tuple[float, float]:
    """Return the upper bounds of the buckets with the median and the 99th percentile."""
    total = sum(lags.values())
    bounds: list[float] = []
    for share in (0.5, 0.99):
        so_far = 0
        for bound in (*keys.LAG_BOUNDS, "+Inf"):
            so_far += lags[bound]
            if total and so_far >= share * total:
                bounds.append(float(bound))
                break
        else:
            bounds.append(float("nan"))
    return bounds[0], bounds[1]
