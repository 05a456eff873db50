"""Results at the pace of a large fleet, through results workers and the score writer into a real API server.

    python -m bench.writes [--clusters 350] [--rate 1167] [--seconds 30] [--workers 1] [--changing 5] [--json FILE]

3,500 clusters with 10 scorers every 30 s send 1,167 results a second. The bench sends as many results from `--clusters`
clusters with 10 scorers each, so each scorer runs proportionally more often. It leaves out renewals of objects, because
their number depends on the number of objects. Each result and each write costs the same. `--changing` percent of the
results have other values than the previous result of their pair. Every result has 10 items. Results are signed
beforehand, and only put into mailboxes during the measurement.

The report shows the results taken in per second, the writes, how many objects waited for a write, and the CPU of each
process. On a machine with two cores, the machine, not the hub, is the bottleneck.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import redis

from bench.common import Figure, Measurement, make_parser, process, read_cpu_seconds, report
from bench.ingest import ITEMS, SECRET
from dsf import keys, messages
from dsf.backends.kube_kinds import WATCHED
from dsf.backends.kube_scores import KubeScores
from dsf.backends.protocol import Kind, ObjectKey
from dsf.kube.reflector import Reflector
from dsf.kube.resources import Resource
from dsf.kube.session import Session
from dsf.kube.store import Key, Object
from dsf.scores.writer import ScoreWriter
from dsf.settings import make_child_environment, settings
from dsf.store.agents import count_waiting_results
from dsf.store.client import connect
from dsf.store.entries import Entry
from dsf.store.registry import ClusterRecord, Registry, ScorerRecord
from tests.support.controlplane import ControlPlane
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

SCORERS, INTERVAL = 10, 30
#: Seconds between two batches of results.
_PACE = 0.05
_NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)


class SendingClusters:
    """Clusters that send results."""

    def __init__(self, client: redis.Redis, clusters: int) -> None:
        self._client = client
        self.clusters = [f"cluster{number}" for number in range(clusters)]
        self._keys = {name: messages.derive_key(bytes.fromhex(SECRET), name, 1) for name in self.clusters}
        self.pairs = [(name, f"scorer{number}") for number in range(SCORERS) for name in self.clusters]
        self._values = dict.fromkeys(self.pairs, 0)
        self._at = time.time()
        self.changes = 0

    def register(self) -> None:
        """Write the registry, as the hub controller does."""
        registry = Registry(self._client)
        for name in self.clusters:
            registry.put_cluster(ClusterRecord(name=name, uid=f"uid-{name}"))
        for number in range(SCORERS):
            record = ScorerRecord(
                name=f"scorer{number}",
                score_name=f"score{number}",
                interval=INTERVAL,
                # A long validity, so that there are no renewals, whose number depends on that of the objects.
                validity=3600,
                dimension_formats=("${node}",),
            )
            registry.put_scorer(record)
        with self._client.pipeline() as pipe:
            for cluster, scorer in self.pairs:
                score = f"score{scorer.removeprefix('scorer')}"
                entry = Entry(cluster=cluster, scorer=scorer, score_name=score, interval=INTERVAL)
                pipe.hset(keys.ENTRIES, entry.pair, entry.dump())
            pipe.execute()

    def prepare_results(self, count: int, changed_fraction: float) -> list[tuple[str, bytes]]:
        """Open `count` runs as beat does, pair after pair, and return (cluster, signed result) for each."""
        signed_results: list[tuple[str, bytes]] = []
        opened: dict[str, float] = {}
        scheduled: Counter[str] = Counter()
        for number in range(count):
            pair = self.pairs[number % len(self.pairs)]
            if random.random() < changed_fraction:
                self._values[pair] = (self._values[pair] + 1) % 90
                self.changes += 1
            result = self._make_result(*pair)
            opened[keys.run_member(*pair, result.run)] = time.time() + 3600
            scheduled[keys.pair_key(*pair)] += 1
            signed_results.append((pair[0], messages.sign(result, self._keys[pair[0]])))
        with self._client.pipeline() as pipe:
            pipe.zadd(keys.OPEN_RUNS, opened)
            for name, number in scheduled.items():
                pipe.hincrby(name, "n:scheduled", number)
            pipe.execute()
        return signed_results

    def _make_result(self, cluster: str, scorer: str) -> messages.Result:
        self._at += 0.001
        value = float(self._values[cluster, scorer])
        return messages.Result(
            cluster=cluster,
            scorer=scorer,
            run=messages.make_run_id(self._at),
            at=self._at,
            outcome="ok",
            results=[({"node": f"node{i}", "meta": "mean"}, value + i) for i in range(ITEMS)],
            timings={"fetch": 0.01, "score": 0.02, "publish": 0.001},
            counts={"series": ITEMS, "source_bytes": 22100},
        )


def read_write_stats(client: redis.Redis) -> Counter[str]:
    """Return the writers' counters."""
    stats_fields = {str(name): str(text) for name, text in client.hgetall(keys.WRITE_STATS).items()}
    return Counter({name: int(text) for name, text in stats_fields.items() if text.isdecimal()})


def count_waiting_objects(client: redis.Redis) -> int:
    """Return the number of changed scores that the writer has not taken yet."""
    return int(client.hlen(keys.WRITES))


class Everything:
    """DesiredScores (`dsf.scores.writer`) of a hub in which every pair needs a score."""

    def needs_score(self, cluster: str, label: str) -> bool:
        """Return True: every pair needs a score."""
        del cluster, label
        return True

    @property
    def version(self) -> None:
        """The desired state never changes, so the writer searches for no scores of the original project."""

    def plan_adoption(self, cluster: str, name: str, created: float) -> None:
        """Return None: there are no scores of the original project."""
        del cluster, name, created

    def find_scorer(self, cluster: str, name: str) -> None:
        """Return None: no two scorers share a name."""
        del cluster, name


class WatchedScores(KubeScores):
    """The scores of one reflector."""

    def __init__(self, session: Session, reflector: Reflector) -> None:
        super().__init__(session, reflector.store.get, reflector.observe)
        self._names = reflector.store.list_keys

    def list_keys(self, kind: Kind) -> Sequence[ObjectKey]:
        """See `dsf.backends.protocol.ScoreBackend`."""
        return [ObjectKey(kind, *key) for key in self._names()]


def serve() -> int:
    """Write scores as the hub controller does, until the process is killed."""
    config = settings()
    session = Session.load(config.kubeconfig)
    watched_kind = WATCHED[Kind.SCORE]
    # The reflector needs the callback before the backend exists.
    callbacks: list[Callable[[Key, Object | None], None]] = []
    reflector = Reflector(
        session,
        watched_kind.resource,
        lambda key, _, obj: callbacks[0](key, obj),
        selectors=watched_kind.selectors,
        transform=watched_kind.reduce,
    )
    backend = WatchedScores(session, reflector)
    callbacks.append(backend.process_report)
    reflector.start()
    reflector.synced.wait(60)
    desired_scores = Everything()
    ScoreWriter(connect(config, name="dsf-bench-writer"), config, backend, lambda: desired_scores).run()
    return 0


def deliver_results(
    client: redis.Redis, fleet: SendingClusters, signed_results: list[tuple[str, bytes]], rate: float
) -> tuple[int, int]:
    """Deliver the results at this rate, and return the maximum numbers of waiting results and of waiting objects."""
    most_results = most_objects = sent_count = 0
    next_slots: Counter[str] = Counter()
    began = time.monotonic()
    while sent_count < len(signed_results):
        due = min(int((time.monotonic() - began) * rate), len(signed_results))
        with client.pipeline(transaction=False) as pipe:
            for cluster, text in signed_results[sent_count:due]:
                pipe.set(keys.mail_slot(cluster, next_slots[cluster] % keys.MAIL_SLOTS), text)
                pipe.set(keys.mail_flag(cluster), next_slots[cluster] % keys.MAIL_SLOTS)
                next_slots[cluster] += 1
            pipe.execute()
        sent_count = due
        most_results = max(most_results, count_waiting_results(client, fleet.clusters))
        most_objects = max(most_objects, count_waiting_objects(client))
        time.sleep(_PACE)
    return most_results, most_objects


def measure(clusters: int, rate: int, seconds: int, workers: int, changed_fraction: float) -> Measurement:
    """Return all figures of one run."""
    with ControlPlane() as plane, RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        client, session = server.client(), plane.session()
        fleet = SendingClusters(client, clusters)
        with ThreadPoolExecutor(8) as pool:
            list(
                pool.map(lambda name: session.create(_NAMESPACES.path(), {"metadata": {"name": name}}), fleet.clusters)
            )
        fleet.register()
        environment = make_child_environment(
            redis_url=server.url,
            signing_secret=SECRET,
            role="hub",
            target="results",
            probe_port=0,
            backend="kube",
            kubeconfig=plane.kubeconfig,
            log_level="WARNING",
        )
        first_results = fleet.prepare_results(len(fleet.pairs), 0.0)
        with contextlib.ExitStack() as stack:
            worker_command = [sys.executable, "-m", "dsf.hub"]
            log = Path(folder) / "log"
            writer_command = [sys.executable, "-m", "bench.writes", "--serve"]
            writer = stack.enter_context(
                process(writer_command, {**environment, "DSF_ROLE": "hub"}, Path(folder) / "writer.log")
            )
            worker_processes = [
                psutil.Process(stack.enter_context(process(worker_command, environment, log)).pid)
                for _ in range(workers)
            ]
            deliver_results(client, fleet, first_results, 1000.0)
            wait_for(
                lambda: read_write_stats(client)["written"] >= len(fleet.pairs), 600, "every object once", interval=0.5
            )
            fleet.changes = 0
            signed_results = fleet.prepare_results(rate * seconds, changed_fraction)
            processes = {
                "results workers": worker_processes,
                "score writer": [psutil.Process(writer.pid)],
                "redis": [psutil.Process(server.pid)],
            }
            processes |= {name: [psutil.Process(pid)] for name, pid in plane.pids.items()}
            cpu_before = {name: read_cpu_seconds(*members) for name, members in processes.items()}
            stats_before, began = read_write_stats(client), time.monotonic()
            most_results, most_objects = deliver_results(client, fleet, signed_results, rate)
            wait_for(lambda: count_waiting_results(client, fleet.clusters) == 0, 600, "empty mailboxes")
            taken_in_seconds = time.monotonic() - began
            wait_for(lambda: count_waiting_objects(client) == 0, 600, "all objects written")
            written_seconds = time.monotonic() - began
            cores_by_name = {
                name: round((read_cpu_seconds(*members) - cpu_before[name]) / written_seconds, 3)
                for name, members in processes.items()
            }
        write_stats = read_write_stats(client) - stats_before
        rejected = client.hgetall(keys.REJECTED)
    details: dict[str, Any] = {
        "results": rate * seconds,
        "rejected": rejected,
        "changes": fleet.changes,
        "seconds_until_taken_in": round(taken_in_seconds, 1),
        "seconds_until_written": round(written_seconds, 1),
        "most_results_waiting": most_results,
        "most_objects_waiting": most_objects,
        "writer": dict(write_stats),
        "cores": cores_by_name,
    }
    reached = rate * seconds / taken_in_seconds
    written_count, coalesced_count = write_stats["written"], write_stats["coalesced"]
    text = f"{written_count} writes, {coalesced_count} coalesced; at most {most_objects} objects waited"
    cores = ", ".join(f"{name} {share:.2f}" for name, share in cores_by_name.items())
    figures = [
        Figure(
            f"results taken in at {rate}/s, {100 * changed_fraction:g} % changing",
            f"{reached:.0f}/s; {text}",
            reached,
            "/s",
        ),
        Figure("cores used", cores, sum(cores_by_name.values()), "cores"),
    ]
    return figures, details


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--clusters", type=int, default=350)
    parser.add_argument("--rate", type=int, default=1167, help="results per second")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--workers", type=int, default=1, help="results workers")
    parser.add_argument("--changing", type=float, default=5.0, help="percent of the results")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    seconds = 10 if arguments.quick else arguments.seconds
    return report(
        arguments,
        measure(arguments.clusters, arguments.rate, seconds, arguments.workers, arguments.changing / 100),
    )


if __name__ == "__main__":
    sys.exit(main())
