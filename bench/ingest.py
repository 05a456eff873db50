"""How many unchanged results a results worker takes in per second, against no-op tasks on the same worker.

    python -m bench.ingest [--count 2500] [--rounds 5] [--two] [--quick] [--strict] [--json FILE]

A real Redis and a real worker process, with its writer and sweeper. Mailboxes, or the worker's queue, are filled first;
then the worker is let loose on them, in turns with no-op tasks and with results of 10 items each from 2,000 pairs. The
worker is one process and so uses one core; Redis has another. `--two` measures two workers in turns with one, on
results alone: as they are, and with root each with half a core, as pods of such a limit have it. Otherwise two cores
are too few for three processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import redis

from bench.common import Figure, Measurement, format_spread, make_parser, process, read_cpu_seconds, report
from dsf import keys, messages
from dsf.settings import Settings, make_child_environment
from dsf.store.agents import count_waiting_results
from dsf.store.entries import Entry
from dsf.store.pairs import Pairs
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

SECRET = "5e" * 32
CLUSTERS, SCORERS, ITEMS = 200, 10, 10
#: Each pair once: the first results write every object, the measured ones change nothing.
PAIRS = CLUSTERS * SCORERS
NOOP_TASK, NOOP_QUEUE = "bench.noop", "bench.noop"
LIMIT = 0.5
#: Share of a core of a limited worker, and its period in microseconds.
HALF, PERIOD = 0.5, 10_000


def serve(queue: str) -> int:
    """Run the results worker with an additional task, on this queue, and return its exit code."""
    from dsf.process import gctuning
    from dsf.results import worker as results_worker
    from dsf.settings import settings
    from dsf.worker.application import _make_queue, make_app

    # Set the same thresholds of the garbage collection as every process of the hub.
    gctuning.set_thresholds()
    config = settings()
    app = make_app(config)

    @app.task(name=NOOP_TASK, ignore_result=True)
    def noop(frame: str) -> None:
        """Do nothing."""

    app.conf.task_queues = [*app.conf.task_queues, _make_queue(NOOP_QUEUE)]
    # A worker refuses every other queue.
    app.conf.task_default_queue = queue
    app.loader.import_default_modules()
    # `make_worker` serves only the queue of results.
    with mock.patch.object(results_worker.keys, "RESULTS_QUEUE", queue):
        worker = results_worker.make_worker(app, config, results_worker.ResultsService(config, app))
        worker.start()
    return int(worker.exitcode or 0)


def register(client: redis.Redis) -> None:
    """Write clusters, scorers and schedule entries of the pairs."""
    registry = Registry(client)
    for c in range(CLUSTERS):
        registry.put_cluster(ClusterRecord(name=f"cluster{c}", uid=f"uid{c}"))
    for s in range(SCORERS):
        record = ScorerRecord(
            name=f"scorer{s}", score_name=f"score {s}", interval=30, validity=3000, dimension_formats=("${node}",)
        )
        registry.put_scorer(record)
        for c in range(CLUSTERS):
            entry = Entry(cluster=f"cluster{c}", scorer=f"scorer{s}", score_name=f"score {s}", interval=30)
            client.hset(keys.ENTRIES, entry.pair, entry.dump())


class Feeder:
    """Fills the queues with messages as an agent sends them."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        from dsf.worker.application import _make_queue, make_app

        self._client = client
        self._app = make_app(Settings(role="agent", cluster="cluster0", redis_url=url))
        self._queue = _make_queue
        master = bytes.fromhex(SECRET)
        self._keys = [messages.derive_key(master, f"cluster{c}", 1) for c in range(CLUSTERS)]
        self._at = time.time() - 600

    def fill(self, queue: str, count: int) -> None:
        """Put `count` no-op messages into their queue, or results into mailboxes, with open runs."""
        if queue == NOOP_QUEUE:
            target: Any = self._queue(queue)
            with self._app.connection_for_write() as connection, self._app.amqp.Producer(connection) as producer:
                for n in range(count):
                    self._app.send_task(
                        NOOP_TASK, args=[self._frame(n).decode()], queue=target, producer=producer, retry=False
                    )
            return
        if count > CLUSTERS * keys.MAIL_SLOTS:
            raise SystemExit(f"--count: the mailboxes take {CLUSTERS * keys.MAIL_SLOTS} results")
        with self._client.pipeline() as pipe:
            for n in range(count):
                cluster, frame = f"cluster{n % CLUSTERS}", self._frame(n)
                run = json.loads(frame.partition(b"\n")[2])
                pipe.zadd(keys.OPEN_RUNS, {keys.run_member(cluster, run["scorer"], run["run"]): time.time() + 3600})
                pipe.hincrby(keys.pair_key(cluster, run["scorer"]), "n:scheduled", 1)
                pipe.set(keys.mail_slot(cluster, n // CLUSTERS), frame)
                pipe.set(keys.mail_flag(cluster), n // CLUSTERS)
            pipe.execute()

    def _frame(self, number: int) -> bytes:
        cluster = number % CLUSTERS
        result = self._result(f"cluster{cluster}", f"scorer{number // CLUSTERS % SCORERS}")
        return messages.sign(result, self._keys[cluster])

    def waiting_results(self, queue: str) -> int:
        """Return the number of waiting messages or results."""
        if queue == NOOP_QUEUE:
            return int(self._client.llen(queue))
        return count_waiting_results(self._client, [f"cluster{c}" for c in range(CLUSTERS)])

    def _result(self, cluster: str, scorer: str) -> messages.Result:
        self._at += 0.005
        return messages.Result(
            cluster=cluster,
            scorer=scorer,
            run=messages.make_run_id(self._at),
            at=self._at + 1,
            outcome="ok",
            results=[({"node": f"node{i}", "meta": "mean"}, 12.5 + i) for i in range(ITEMS)],
            timings={"fetch": 0.01, "score": 0.02, "publish": 0.001},
            counts={"series": ITEMS, "source_bytes": 22100},
        )


def drain(url: str, log: Path, feeder: Feeder, queue: str, count: int) -> tuple[float, float]:
    """Return tasks per second and CPU milliseconds per task of a worker that processes everything that waits."""
    warm = count // 4
    command = [sys.executable, "-m", "bench.ingest", "--serve", queue]
    environment = make_child_environment(redis_url=url, signing_secret=SECRET, role="results", log_level="WARNING")
    with process(command, environment, log) as running:
        worker = psutil.Process(running.pid)
        wait_for(lambda: feeder.waiting_results(queue) < count - warm, 60, "the worker to warm up", interval=0.005)
        start, waiting, cpu_before = time.monotonic(), feeder.waiting_results(queue), read_cpu_seconds(worker)
        wait_for(lambda: feeder.waiting_results(queue) == 0, 300, "nothing to wait", interval=0.02)
        seconds, cpu_seconds = time.monotonic() - start, read_cpu_seconds(worker) - cpu_before
    return waiting / seconds, 1000 * cpu_seconds / waiting


@contextlib.contextmanager
def limited(running: psutil.Process, share: float) -> Iterator[None]:
    """Limit the process to this share of a core. Needs root."""
    if share == 1:
        yield
        return
    root = Path("/sys/fs/cgroup")
    quota, period = round(share * PERIOD), PERIOD
    is_old = (root / "cpu").is_dir()
    group = root / ("cpu" if is_old else "") / f"dsf-bench-{running.pid}"
    group.mkdir()
    try:
        if is_old:
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {period}")
        (group / "cgroup.procs").write_text(str(running.pid))
        yield
    finally:
        running.kill()
        wait_for(lambda: not (group / "cgroup.procs").read_text(), 10, "the worker to end")
        group.rmdir()


def _count_workers(client: redis.Redis) -> int:
    """Return the number of results workers that poll mailboxes."""
    return sum(connection["name"] == "dsf-results-mail" for connection in client.client_list())


def drain_with_workers(
    url: str, log: Path, client: redis.Redis, feeder: Feeder, count: int, workers: int, share: float = 1.0
) -> tuple[float, float]:
    """Return results per second and CPU milliseconds per result, Redis included, of workers that start together."""
    command = [sys.executable, "-m", "bench.ingest", "--serve", keys.RESULTS_QUEUE]
    environment = make_child_environment(redis_url=url, signing_secret=SECRET, role="results", log_level="WARNING")
    server = psutil.Process(int(client.info("server")["process_id"]))
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(process(command, environment, log)) for _ in range(workers)]
        processes = [psutil.Process(worker.pid) for worker in running]
        for worker_process in processes:
            stack.enter_context(limited(worker_process, share))
        wait_for(lambda: _count_workers(client) >= workers, 60, "the workers", interval=0.05)
        for worker_process in processes:
            worker_process.suspend()
        feeder.fill(keys.RESULTS_QUEUE, count)
        cpu_before, start = read_cpu_seconds(*processes, server), time.monotonic()
        for worker_process in processes:
            worker_process.resume()
        wait_for(lambda: client.zcard(keys.OPEN_RUNS) == 0, 300, "all results in the books", interval=0.005)
        seconds, cpu_seconds = time.monotonic() - start, read_cpu_seconds(*processes, server) - cpu_before
    return count / seconds, 1000 * cpu_seconds / count


def measure_two(count: int, rounds: int) -> Measurement:
    """Measure two workers and one in turns."""
    shares = (1.0, HALF) if os.geteuid() == 0 else (1.0,)
    turns_by_share: dict[float, dict[int, list[tuple[float, float]]]] = {share: {1: [], 2: []} for share in shares}
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        client = server.client()
        register(client)
        feeder = Feeder(server.url, client)
        drain_with_workers(server.url, Path(folder) / "log", client, feeder, PAIRS, 1)
        for _ in range(rounds):
            for share, turns in turns_by_share.items():
                for workers, figures in turns.items():
                    figures.append(
                        drain_with_workers(server.url, Path(folder) / "log", client, feeder, count, workers, share)
                    )
    rows = []
    for share, turns in turns_by_share.items():
        rates_of_one, two = ([rate for rate, _ in figures] for figures in turns.values())
        cpu_texts = [f"{statistics.median(cpu_ms for _, cpu_ms in figures):.2f} ms" for figures in turns.values()]
        rows.append(
            Figure(
                "ingest with two results workers" + (", each with half a core" if share == HALF else ""),
                f"{format_spread(two, '/s', 0)}, {cpu_texts[1]} of CPU each with Redis",
                statistics.median(faster / less for less, faster in zip(rates_of_one, two, strict=True)),
                "x",
                f"one, {format_spread(rates_of_one, '/s', 0)}, {cpu_texts[0]}",
                lower_limit=1.8 if share == shares[-1] else None,
            )
        )
    return rows, {"workers": turns_by_share}


def measure(count: int, rounds: int) -> Measurement:
    """Return all figures of one run."""
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        client = server.client()
        log = Path(folder) / "log"
        register(client)
        feeder = Feeder(server.url, client)
        rates: dict[str, list[float]] = {NOOP_QUEUE: [], keys.RESULTS_QUEUE: []}
        cpu_by_queue: dict[str, list[float]] = {NOOP_QUEUE: [], keys.RESULTS_QUEUE: []}
        feeder.fill(keys.RESULTS_QUEUE, PAIRS)
        drain(server.url, log, feeder, keys.RESULTS_QUEUE, PAIRS)
        for _ in range(rounds):
            for queue in rates:
                feeder.fill(queue, count)
                rate, cpu_milliseconds = drain(server.url, log, feeder, queue, count)
                rates[queue].append(rate)
                cpu_by_queue[queue].append(cpu_milliseconds)
        ok = sum(state.count("ok") for state in Pairs(client).read_states(Pairs(client).list_names()))
        expected = rounds * count + PAIRS
        if ok != expected:
            raise SystemExit(f"{ok} results in the books, {expected} were sent: {client.hgetall(keys.REJECTED)}")
    noop, results = rates[NOOP_QUEUE], rates[keys.RESULTS_QUEUE]
    # Ratios are computed between neighbouring rounds, which other load affects equally.
    ratios = [result / noop_rate for noop_rate, result in zip(noop, results, strict=True)]
    cpu_texts = {queue: f"{statistics.median(cpu_by_queue[queue]):.2f} ms CPU each" for queue in cpu_by_queue}
    ratio_figure = Figure(
        "ingest of unchanged results on one core",
        f"{format_spread(results, '/s', 0)}, {cpu_texts[keys.RESULTS_QUEUE]}",
        statistics.median(ratios),
        "x",
        f"no-op tasks on the same worker, {format_spread(noop, '/s', 0)}, {cpu_texts[NOOP_QUEUE]}",
        lower_limit=LIMIT,
    )
    return [ratio_figure], {"per_second": rates, "cpu_ms": cpu_by_queue, "ratios": ratios}


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--count", type=int, help="messages per measurement")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--two", action="store_true", help="two workers against one")
    parser.add_argument("--serve", metavar="QUEUE", help="be the worker, as this program starts it itself")
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve)
    count, rounds = (1000, 3) if arguments.quick else (2500, 5)
    if arguments.two:
        return report(arguments, measure_two(arguments.count or 3_000, arguments.rounds or 3))
    return report(arguments, measure(arguments.count or count, arguments.rounds or rounds))


if __name__ == "__main__":
    sys.exit(main())
