"""How many unchanged results a results worker takes in per second, against no-op tasks on the same worker.

    python bench/ingest.py [--count 4000] [--rounds 3] [--json FILE]

A real Redis and a real worker process, with its writer and sweeper. The queue is filled first; then the worker is let
loose on it, in turns with no-op tasks and with results of 10 items each from 200 pairs. The worker is one process and
so uses one core; Redis has another. The limit is measured in the same run: results/s >= 0.5 x no-op tasks/s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

import redis

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

SECRET = "5e" * 32
CLUSTERS, SCORERS, ITEMS = 20, 10, 10
NOOP_TASK, NOOP_QUEUE = "bench.noop", "bench.noop"
LIMIT = 0.5


class Nowhere:
    """A backend that is as fast as can be: what is measured is the worker."""

    def apply_score(self, manifest: dict[str, object], status: dict[str, object]) -> None:
        """Nothing."""

    def delete_score(self, namespace: str, name: str) -> None:
        """Nothing."""


def serve() -> int:
    """The results worker as it is, with one more task and queue."""
    from dsf.celery import _queue, app
    from dsf.results import service
    from dsf.results.worker import run
    from dsf.settings import settings

    @app.task(name=NOOP_TASK, acks_late=True, ignore_result=True)
    def noop(envelope: object) -> None:
        """Nothing."""

    service._backend = lambda config: Nowhere()
    app.conf.worker_pool = os.environ.get("BENCH_POOL", app.conf.worker_pool)
    app.conf.task_queues = [*app.conf.task_queues, _queue(NOOP_QUEUE)]
    original = app.Worker
    queue = os.environ["BENCH_QUEUE"]
    # Celery's command line would take the queue as an argument; `run` serves the results queue only.
    app.Worker = lambda **values: original(**{**values, "queues": [queue]})  # type: ignore[method-assign]
    return run(settings())


def environment(url: str, queue: str) -> dict[str, str]:
    """Environment of the worker."""
    return {
        **os.environ,
        "DSF_REDIS_URL": url,
        "DSF_SIGNING_SECRET": SECRET,
        "DSF_ROLE": "results",
        "DSF_LOG_LEVEL": "WARNING",
        "BENCH_QUEUE": queue,
    }


def register(client: redis.Redis) -> None:
    """Clusters, scorers and schedule entries of the pairs."""
    from dsf import keys
    from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
    from dsf.store.schedule import Entry

    registry = Registry(client)
    for c in range(CLUSTERS):
        registry.put_cluster(ClusterRecord(name=f"cluster{c}", uid=f"uid{c}"))
    for s in range(SCORERS):
        registry.put_scorer(
            ScorerRecord(
                name=f"scorer{s}", score_name=f"score {s}", interval=30, validity=3000, dimension_format="${node}"
            )
        )
        for c in range(CLUSTERS):
            entry = Entry(cluster=f"cluster{c}", scorer=f"scorer{s}", score_name=f"score {s}", interval=30)
            client.hset(keys.ENTRIES, entry.pair, entry.model_dump_json())


class Feeder:
    """Fills the queues with messages as an agent sends them."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        from dsf import messages
        from dsf.celery import make_app
        from dsf.settings import Settings

        self._client = client
        self._app = make_app(Settings(role="agent", cluster="cluster0", redis_url=url))
        master = bytes.fromhex(SECRET)
        self._keys = [messages.derive_key(master, f"cluster{c}", 1) for c in range(CLUSTERS)]
        self._at = time.time() - 600

    def fill(self, queue: str, count: int) -> None:
        """Put `count` messages into a queue; results open their runs, as beat does."""
        from dsf import keys, messages

        task = NOOP_TASK if queue == NOOP_QUEUE else messages.INGEST_TASK
        members: dict[str, float] = {}
        with self._app.connection_for_write() as connection, self._app.amqp.Producer(connection) as producer:
            for n in range(count):
                cluster, scorer = n % CLUSTERS, n // CLUSTERS % SCORERS
                self._at += 0.005
                result = messages.Result(
                    cluster=f"cluster{cluster}",
                    scorer=f"scorer{scorer}",
                    run=messages.new_run_id(self._at),
                    at=self._at + 1,
                    outcome="ok",
                    results=[({"node": f"node{i}", "meta": "mean"}, 12.5 + i) for i in range(ITEMS)],
                    timings={"fetch": 0.01, "score": 0.02, "publish": 0.001},
                    counts={"series": ITEMS, "source_bytes": 22100},
                )
                envelope = messages.sign(result, self._keys[cluster])
                if task == messages.INGEST_TASK:
                    members[keys.run_member(result.cluster, result.scorer, result.run)] = time.time() + 3600
                    self._client.hincrby(keys.pair_key(result.cluster, result.scorer), "n:scheduled", 1)
                self._app.send_task(task, args=[envelope], queue=_queue_of(queue), producer=producer, retry=False)
        if members:
            self._client.zadd(keys.OPEN_RUNS, members)


def _queue_of(name: str) -> object:
    from dsf.celery import _queue

    return _queue(name)


def drain(url: str, log: IO[bytes], client: redis.Redis, queue: str, count: int) -> tuple[float, float]:
    """(tasks per second, CPU milliseconds per task) of a worker that empties the queue."""
    import psutil

    from dsf import keys

    warm = count // 4
    worker = subprocess.Popen(
        [sys.executable, __file__, "--serve"], env=environment(url, queue), stdout=log, stderr=log
    )
    process = psutil.Process(worker.pid)
    try:
        wait_for(lambda: client.llen(queue) < count - warm, 60, "the worker to warm up", interval=0.005)
        start, left, cpu = time.monotonic(), client.llen(queue), sum(process.cpu_times()[:2])
        wait_for(
            lambda: client.llen(queue) == 0 and client.hlen(keys.UNACKED) == 0, 300, "an empty queue", interval=0.005
        )
        seconds, used = time.monotonic() - start, sum(process.cpu_times()[:2]) - cpu
    finally:
        worker.terminate()
        worker.wait(60)
    return left / seconds, 1000 * used / left


def measure(count: int, rounds: int) -> dict[str, float]:
    """All figures of one run."""
    from dsf import keys
    from dsf.store.pairs import Pairs

    with RedisServer() as server, tempfile.TemporaryFile() as log:
        client = server.client()
        register(client)
        feeder = Feeder(server.url, client)
        rates: dict[str, list[float]] = {NOOP_QUEUE: [], keys.RESULTS_QUEUE: []}
        cpu: dict[str, list[float]] = {NOOP_QUEUE: [], keys.RESULTS_QUEUE: []}
        # The first results write every object; those that are measured change nothing.
        feeder.fill(keys.RESULTS_QUEUE, 2 * CLUSTERS * SCORERS)
        drain(server.url, log, client, keys.RESULTS_QUEUE, 2 * CLUSTERS * SCORERS)
        for _ in range(rounds):
            for queue in rates:
                feeder.fill(queue, count)
                rate, used = drain(server.url, log, client, queue, count)
                rates[queue].append(rate)
                cpu[queue].append(used)
        ok = sum(state.count("ok") for state in Pairs(client).states(Pairs(client).names()))
        expected = rounds * count + 2 * CLUSTERS * SCORERS
        if ok != expected:
            raise SystemExit(f"{ok} results in the books, {expected} were sent: {client.hgetall(keys.REJECTED)}")
        noop, results = statistics.median(rates[NOOP_QUEUE]), statistics.median(rates[keys.RESULTS_QUEUE])
        # Of neighbours in time, so that what else the machine does meets both.
        ratio = statistics.median(r / n for n, r in zip(rates[NOOP_QUEUE], rates[keys.RESULTS_QUEUE], strict=True))
        return {
            "noop_per_second": round(noop, 1),
            "results_per_second": round(results, 1),
            "ratio": round(ratio, 3),
            "limit": LIMIT,
            "noop_cpu_ms": round(statistics.median(cpu[NOOP_QUEUE]), 3),
            "result_cpu_ms": round(statistics.median(cpu[keys.RESULTS_QUEUE]), 3),
        }


def main() -> int:
    """Measure, print, and say by the exit code whether the limit was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=4000, help="messages per measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    figures = measure(arguments.count, arguments.rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(f"no-op tasks/s   {figures['noop_per_second']:>8}   {figures['noop_cpu_ms']} ms CPU each")
    print(f"results/s       {figures['results_per_second']:>8}   {figures['result_cpu_ms']} ms CPU each")
    print(f"ratio           {figures['ratio']:>8}   to reach: {LIMIT}")
    return 0 if figures["ratio"] >= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
