"""How many unchanged results a results worker takes in per second, against no-op tasks on the same worker.

    python -m bench.ingest [--count 2500] [--rounds 5] [--quick] [--strict] [--json FILE]

A real Redis and a real worker process, with its writer and sweeper. The queue is filled first; then the worker is let
loose on it, in turns with no-op tasks and with results of 10 items each from 200 pairs. The worker is one process and
so uses one core; Redis has another.
"""

from __future__ import annotations

import functools
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import redis

from bench.common import Figure, Measurement, cpu, options, process, report, spread
from dsf import keys, messages
from dsf.settings import Settings, child_environment
from dsf.store.pairs import Pairs
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from dsf.store.schedule import Entry
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

SECRET = "5e" * 32
CLUSTERS, SCORERS, ITEMS = 20, 10, 10
#: All of `PAIRS` twice: the first results write every object; those that are measured change nothing.
PAIRS = CLUSTERS * SCORERS
NOOP_TASK, NOOP_QUEUE = "bench.noop", "bench.noop"
LIMIT = 0.5


class Nowhere:
    """A backend that is as fast as can be: what is measured is the worker."""

    def apply_score(self, manifest: dict[str, object], status: dict[str, object]) -> None:
        """Nothing."""

    def delete_score(self, namespace: str, name: str) -> None:
        """Nothing."""


def serve(queue: str) -> int:
    """The results worker as it is, with one more task, and on this queue."""
    from dsf.celery import _queue, app
    from dsf.results import service
    from dsf.results.worker import run
    from dsf.settings import settings

    @app.task(name=NOOP_TASK, acks_late=True, ignore_result=True)
    def noop(envelope: object) -> None:
        """Nothing."""

    app.conf.task_queues = [*app.conf.task_queues, _queue(NOOP_QUEUE)]
    worker = app.Worker

    # `run` serves the queue of results only.
    @functools.wraps(worker)
    def on_queue(**values: Any) -> object:
        return worker(**{**values, "queues": [queue]})

    with (
        mock.patch.object(service, "make_score_backend", return_value=Nowhere()),
        mock.patch.object(app, "Worker", on_queue),
    ):
        return run(settings())


def register(client: redis.Redis) -> None:
    """Clusters, scorers and schedule entries of the pairs."""
    registry = Registry(client)
    for c in range(CLUSTERS):
        registry.put_cluster(ClusterRecord(name=f"cluster{c}", uid=f"uid{c}"))
    for s in range(SCORERS):
        record = ScorerRecord(
            name=f"scorer{s}", score_name=f"score {s}", interval=30, validity=3000, dimension_format="${node}"
        )
        registry.put_scorer(record)
        for c in range(CLUSTERS):
            entry = Entry(cluster=f"cluster{c}", scorer=f"scorer{s}", score_name=f"score {s}", interval=30)
            client.hset(keys.ENTRIES, entry.pair, entry.dump())


class Feeder:
    """Fills the queues with messages as an agent sends them."""

    def __init__(self, url: str, client: redis.Redis) -> None:
        from dsf.celery import _queue, make_app

        self._client = client
        self._app = make_app(Settings(role="agent", cluster="cluster0", redis_url=url))
        self._queue = _queue
        master = bytes.fromhex(SECRET)
        self._keys = [messages.derive_key(master, f"cluster{c}", 1) for c in range(CLUSTERS)]
        self._at = time.time() - 600

    def fill(self, queue: str, count: int) -> None:
        """Put `count` messages into a queue; results open their runs, as beat does."""
        task = NOOP_TASK if queue == NOOP_QUEUE else messages.INGEST_TASK
        target: Any = self._queue(queue)
        members: dict[str, float] = {}
        scheduled: Counter[str] = Counter()
        with self._app.connection_for_write() as connection, self._app.amqp.Producer(connection) as producer:
            for n in range(count):
                result = self._result(f"cluster{n % CLUSTERS}", f"scorer{n // CLUSTERS % SCORERS}")
                envelope = messages.sign(result, self._keys[n % CLUSTERS])
                if task == messages.INGEST_TASK:
                    members[keys.run_member(result.cluster, result.scorer, result.run)] = time.time() + 3600
                    scheduled[keys.pair_key(result.cluster, result.scorer)] += 1
                self._app.send_task(task, args=[envelope], queue=target, producer=producer, retry=False)
        if members:
            with self._client.pipeline() as pipe:
                pipe.zadd(keys.OPEN_RUNS, members)
                for pair, number in scheduled.items():
                    pipe.hincrby(pair, "n:scheduled", number)
                pipe.execute()

    def _result(self, cluster: str, scorer: str) -> messages.Result:
        self._at += 0.005
        return messages.Result(
            cluster=cluster,
            scorer=scorer,
            run=messages.new_run_id(self._at),
            at=self._at + 1,
            outcome="ok",
            results=[({"node": f"node{i}", "meta": "mean"}, 12.5 + i) for i in range(ITEMS)],
            timings={"fetch": 0.01, "score": 0.02, "publish": 0.001},
            counts={"series": ITEMS, "source_bytes": 22100},
        )


def drain(url: str, log: Path, client: redis.Redis, queue: str, count: int) -> tuple[float, float]:
    """(tasks per second, CPU milliseconds per task) of a worker that empties the queue."""
    warm = count // 4
    command = [sys.executable, "-m", "bench.ingest", "--serve", queue]
    environment = child_environment(redis_url=url, signing_secret=SECRET, role="results", log_level="WARNING")
    with process(command, environment, log) as running:
        worker = psutil.Process(running.pid)
        wait_for(lambda: client.llen(queue) < count - warm, 60, "the worker to warm up", interval=0.005)
        start, left, before = time.monotonic(), client.llen(queue), cpu(worker)
        wait_for(
            lambda: client.llen(queue) == 0 and client.hlen(keys.UNACKED) == 0, 300, "an empty queue", interval=0.005
        )
        seconds, used = time.monotonic() - start, cpu(worker) - before
    return left / seconds, 1000 * used / left


def measure(count: int, rounds: int) -> Measurement:
    """All figures of one run."""
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        client = server.client()
        log = Path(folder) / "log"
        register(client)
        feeder = Feeder(server.url, client)
        rates: dict[str, list[float]] = {NOOP_QUEUE: [], keys.RESULTS_QUEUE: []}
        used: dict[str, list[float]] = {NOOP_QUEUE: [], keys.RESULTS_QUEUE: []}
        feeder.fill(keys.RESULTS_QUEUE, 2 * PAIRS)
        drain(server.url, log, client, keys.RESULTS_QUEUE, 2 * PAIRS)
        for _ in range(rounds):
            for queue in rates:
                feeder.fill(queue, count)
                rate, each = drain(server.url, log, client, queue, count)
                rates[queue].append(rate)
                used[queue].append(each)
        ok = sum(state.count("ok") for state in Pairs(client).states(Pairs(client).names()))
        expected = rounds * count + 2 * PAIRS
        if ok != expected:
            raise SystemExit(f"{ok} results in the books, {expected} were sent: {client.hgetall(keys.REJECTED)}")
    noop, results = rates[NOOP_QUEUE], rates[keys.RESULTS_QUEUE]
    # Of neighbours in time, so that what else the machine does meets both.
    ratios = [result / other for other, result in zip(noop, results, strict=True)]
    each = {queue: f"{statistics.median(used[queue]):.2f} ms CPU each" for queue in used}
    found = Figure(
        "ingest of unchanged results on one core",
        f"{spread(results, '/s', 0)}, {each[keys.RESULTS_QUEUE]}",
        statistics.median(ratios),
        "x",
        f"no-op tasks on the same worker, {spread(noop, '/s', 0)}, {each[NOOP_QUEUE]}",
        least=LIMIT,
    )
    return [found], {"per_second": rates, "cpu_ms": used, "ratios": ratios}


def main() -> int:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--count", type=int, help="messages per measurement")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--serve", metavar="QUEUE", help="be the worker, as this program starts it itself")
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve)
    count, rounds = (1000, 3) if arguments.quick else (2500, 5)
    return report(arguments, measure(arguments.count or count, arguments.rounds or rounds))


if __name__ == "__main__":
    sys.exit(main())
