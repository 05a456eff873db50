"""Cost of the hub controller for a whole fleet: the first distribution, at rest, one new scorer, a restart, and many
new scorers at once.

    python -m bench.hub [--clusters N] [--seconds S] [--quick] [--strict] [--json FILE]

A real hub controller on a folder of manifests, with a real Redis. Ten scorers with healthy scoring APIs; every pair has
its score in Redis and its AddOnPlacementScore in the folder, as results workers leave them. CPU seconds are those of
the processes; the clock is for what people wait for.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import redis
import yaml

from bench.common import Figure, Measurement, make_parser, process, read_cpu_seconds, report
from dsf import keys
from dsf.api.types import API_VERSION
from dsf.settings import make_child_environment
from dsf.up.embedded_redis import EmbeddedRedis
from dsf.up.ports import Ports
from dsf.up.supervisor import Supervisor

CLUSTERS, QUICK_CLUSTERS, SCORERS, ITEMS = 1000, 100, 10, 10
#: Scorers that are created at once, and the number of clusters that get them.
MANY, QUICK_MANY, FEW_CLUSTERS = 1000, 100, 5
#: Seconds of the measurement at rest, which include several complete checks by the hub.
REST, QUICK_REST = 90.0, 35.0
#: Maximum seconds for the hub's start, and seconds without work that show its end.
_PATIENCE, _QUIET = 300.0, 3.0


class ScoringApi(BaseHTTPRequestHandler):
    """A healthy scoring API; `/<name>/config` is the configuration of the scorer of that name."""

    protocol_version = "HTTP/1.1"
    #: Seconds between two cycles of every scorer.
    interval = 30

    def do_GET(self) -> None:
        """Respond to requests for health and configuration."""
        name = self.path.strip("/").partition("/")[0]
        source = {"type": "Prometheus", "host": self.source()}
        source["params"] = {"query": "up", "range": 600, "step": 60}
        scoring = {"params": {"name": name, "interval": self.interval}}
        self.respond(json.dumps({"name": name, "source": source, "scoring": scoring}).encode())

    def source(self) -> str:
        """Return the address of Prometheus."""
        return "http://prometheus.test:9090"

    def respond(self, body: bytes) -> None:
        """Respond with 200 and this JSON."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        # The client may have given up, for example when 120 agents start at once.
        with contextlib.suppress(ConnectionError):
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class HubFleet:
    """Manifests, scores and a hub; `spent` and `waited` belong to one measurement each."""

    def __init__(self, folder: Path, server: EmbeddedRedis, redis_pid: int, url: str, clusters: int) -> None:
        self.folder = folder / "manifests"
        self.client = redis.Redis.from_url(server.url, decode_responses=True)
        self.clusters = [f"cluster-{number:04}" for number in range(clusters)]
        self._url = url
        self._log = folder / "hub.log"
        self._redis = psutil.Process(redis_pid)
        self._hub: psutil.Process | None = None
        self._environment = make_child_environment(
            redis_url=server.url, backend="dir", manifests=self.folder, role=None, target="controller", probe_port=0
        )

    def write_manifests(self) -> None:
        """Write the users' objects, one file for each."""
        self._write("config", configuration())
        for name in self.clusters:
            kind = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
            self._write(f"clusters/{name}", {**kind, "metadata": {"name": name}, "spec": {"hubAcceptsClient": True}})
        for number in range(SCORERS):
            self.scorer(f"scorer-{number}")

    def scorer(self, name: str, **execution: Any) -> None:
        """Write a scorer's manifest, a new or a changed one."""
        self._write(f"scorers/{name}", scorer(name, self._url, **execution))

    def write_scores(self) -> None:
        """Write the data that results workers write for every pair: its state in Redis, its object in the folder."""
        now = time.time()
        row = json.dumps({"last_success": str(now), "valid_until": str(now + 3600), "items": str(ITEMS)})
        for cluster in self.clusters:
            with self.client.pipeline(transaction=False) as pipe:
                for number in range(SCORERS):
                    pipe.hset(keys.ROWS, keys.pair(cluster, f"scorer-{number}"), row)
                pipe.execute()
            folder = self.folder / "_out/clusters" / cluster / "addonplacementscores"
            folder.mkdir(parents=True)
            for number in range(SCORERS):
                (folder / f"scorer-{number}.yaml").write_text(_score(cluster, f"scorer-{number}"), encoding="utf-8")

    @contextmanager
    def hub(self) -> Iterator[None]:
        """Run a hub controller."""
        with process([sys.executable, "-m", "dsf.hub"], self._environment, self._log) as running:
            self._hub = psutil.Process(running.pid)
            yield

    def read_cpu_seconds(self) -> tuple[float, float]:
        """Return the CPU seconds of the hub and of Redis so far."""
        assert self._hub is not None
        return read_cpu_seconds(self._hub), read_cpu_seconds(self._redis)

    def read_memory(self) -> int:
        """Return the resident bytes of the hub."""
        assert self._hub is not None
        return int(self._hub.memory_info().rss)

    def count_entries(self, scorer: str, is_right: Callable[[dict[str, Any]], bool] = bool) -> int:
        """Return the number of clusters for which the schedule has a right entry of this scorer."""
        texts = self.client.hmget(keys.ENTRIES, [keys.pair(cluster, scorer) for cluster in self.clusters])
        return sum(is_right(json.loads(text)) for text in texts if text is not None)

    def measure_arrivals(self, scorer: str, is_right: Callable[[dict[str, Any]], bool] = bool) -> list[float]:
        """Return the seconds until each cluster has a right entry."""
        began, times = time.monotonic(), []
        while len(times) < len(self.clusters):
            entry_count = self.count_entries(scorer, is_right)
            seconds = time.monotonic() - began
            times += [seconds] * (entry_count - len(times))
            if seconds > _PATIENCE:
                raise TimeoutError(f"{scorer}: {entry_count} of {len(self.clusters)} clusters; see {self._log}")
            time.sleep(0.1)
        return times

    def wait_for_entries(self, scorers: list[str]) -> None:
        """Wait until each cluster has entries of all these scorers."""
        began, incomplete_scorers = time.monotonic(), list(scorers)
        while incomplete_scorers:
            if self.count_entries(incomplete_scorers[-1]) == len(self.clusters):
                incomplete_scorers.pop()
                continue
            if time.monotonic() - began > _PATIENCE:
                raise TimeoutError(
                    f"{len(incomplete_scorers)} of {len(scorers)} scorers are not everywhere; see {self._log}"
                )
            time.sleep(0.1)

    def settle(self) -> None:
        """Wait until the hub has finished its work."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            cpu_before = self.read_cpu_seconds()[0]
            time.sleep(_QUIET)
            if self.read_cpu_seconds()[0] - cpu_before < 0.5 * _QUIET:
                return
        raise TimeoutError(f"the hub does not come to rest; see {self._log}")

    def _write(self, name: str, manifest: dict[str, Any]) -> None:
        path = self.folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")


def configuration() -> dict[str, Any]:
    """Return the DynamicScoringConfig."""
    metadata = {"name": "dynamic-scoring-config"}
    return {"apiVersion": API_VERSION, "kind": "DynamicScoringConfig", "metadata": metadata, "spec": {}}


def scorer(name: str, url: str, **execution: Any) -> dict[str, Any]:
    """Return a DynamicScorer of the scoring API at `url`."""
    spec = {"description": "bench", "configURL": f"{url}/{name}/config", "configSyncMode": "Full"}
    spec |= {"scoreDimensionFormat": "${node}", "execution": execution}
    return {"apiVersion": API_VERSION, "kind": "DynamicScorer", "metadata": {"name": name}, "spec": spec}


def _score(cluster: str, scorer: str) -> str:
    labels = {"app.kubernetes.io/managed-by": "dynamic-scoring-framework"}
    body = {
        "apiVersion": "cluster.open-cluster-management.io/v1alpha1",
        "kind": "AddOnPlacementScore",
        "metadata": {"name": scorer, "namespace": cluster, "labels": labels},
        "status": {"scores": [{"name": f"item-{number}", "value": number} for number in range(ITEMS)]},
    }
    return yaml.safe_dump(body, sort_keys=False)


def measure_fleet(fleet: HubFleet, rest: float) -> list[Figure]:
    """Return a row for each task of the hub."""
    pairs = f"{len(fleet.clusters)} clusters x {SCORERS} scorers"
    figures = []

    def row(name: str, seconds: float, spent: tuple[float, float], text: str = "", **bound: float) -> None:
        measured = f"{text or f'{seconds:.1f} s'}; CPU: hub {spent[0]:.2f} s, Redis {spent[1]:.2f} s"
        figures.append(Figure(name, measured, seconds, "s", pairs, **bound))

    def compute_cpu_since(cpu_before: tuple[float, float]) -> tuple[float, float]:
        hub_seconds, redis_seconds = fleet.read_cpu_seconds()
        return hub_seconds - cpu_before[0], redis_seconds - cpu_before[1]

    def redis_only() -> tuple[float, float]:
        return 0.0, read_cpu_seconds(fleet._redis)

    fleet.write_manifests()
    began, cpu_before = time.monotonic(), redis_only()
    with fleet.hub():
        for number in range(SCORERS):
            fleet.measure_arrivals(f"scorer-{number}")
        row("all scorers to all clusters", time.monotonic() - began, compute_cpu_since(cpu_before), upper_limit=60)
        fleet.write_scores()
        fleet.settle()
        cpu_before = fleet.read_cpu_seconds()
        time.sleep(rest)
        spent = compute_cpu_since(cpu_before)
        measured = f"Redis {1000 * spent[1] / rest:.1f} mCPU; {fleet.read_memory() / 2**20:.0f} MiB; {rest:.0f} s"
        figures.append(Figure("hub at rest", measured, 1000 * spent[0] / rest, "mCPU", pairs, upper_limit=20))
        cpu_before = fleet.read_cpu_seconds()
        fleet.scorer("newcomer")
        times = sorted(fleet.measure_arrivals("newcomer"))
        fleet.settle()
        p50, p99 = statistics.median(times), times[int(0.99 * len(times)) - 1]
        row(
            "a new scorer until p99 of the clusters have it",
            p99,
            compute_cpu_since(cpu_before),
            f"p50 {p50:.1f}, p99 {p99:.1f} s",
            upper_limit=2,
        )
    began, cpu_before = time.monotonic(), redis_only()
    with fleet.hub():
        fleet.scorer("newcomer", rateLimit="900/s")
        fleet.measure_arrivals("newcomer", lambda entry: entry.get("rate_limit") == "900/s")
        duration = time.monotonic() - began
        fleet.settle()
        row("restart until a change is in force", duration, compute_cpu_since(cpu_before), upper_limit=10)
    return figures


def measure_many(fleet: HubFleet, many: int) -> list[Figure]:
    """Measure many new scorers at once, and an edit of another scorer meanwhile."""
    fleet.write_manifests()
    with fleet.hub():
        fleet.measure_arrivals("scorer-0")
        fleet.settle()
        began, cpu_before = time.monotonic(), fleet.read_cpu_seconds()
        names = [f"many-{number:04}" for number in range(many)]
        for name in names:
            fleet.scorer(name)
        fleet.scorer("scorer-0", rateLimit="900/s")
        edit = max(fleet.measure_arrivals("scorer-0", lambda entry: entry.get("rate_limit") == "900/s"))
        fleet.wait_for_entries(names)
        duration, cpu_after = time.monotonic() - began, fleet.read_cpu_seconds()
    config = f"{many} scorers, {len(fleet.clusters)} clusters"
    spent = f"CPU: hub {cpu_after[0] - cpu_before[0]:.2f} s, Redis {cpu_after[1] - cpu_before[1]:.2f} s"
    return [
        Figure(
            "many scorers at once until all clusters have all",
            f"{duration:.1f} s; {spent}",
            duration,
            "s",
            config,
            upper_limit=30,
        ),
        Figure("an edit of another scorer meanwhile", f"{edit:.1f} s", edit, "s", config, upper_limit=2),
    ]


def measure(clusters: int, rest: float, many: int) -> Measurement:
    """Measure everything, with separate processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        supervisor = Supervisor(folder, lambda _: None)
        server = EmbeddedRedis(folder / "redis", Ports(lambda _: None).any())
        api = ThreadingHTTPServer(("127.0.0.1", 0), ScoringApi)
        threading.Thread(target=api.serve_forever, daemon=True).start()
        try:
            program = server.program()
            supervisor.start(program)
            supervisor.wait_ready(30)
            url = f"http://127.0.0.1:{api.server_address[1]}"
            fleet = HubFleet(folder, server, supervisor.pid(program.name), url, clusters)
            figures = measure_fleet(fleet, rest)
            fleet.client.flushall()
            second_folder = folder / "many"
            second_folder.mkdir()
            figures += measure_many(
                HubFleet(second_folder, server, supervisor.pid(program.name), url, FEW_CLUSTERS), many
            )
        finally:
            api.shutdown()
            supervisor.stop_all()
    return figures, {"clusters": clusters, "scorers": SCORERS}


def main() -> int:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--clusters", type=int, help=f"how many (default {CLUSTERS}, quick {QUICK_CLUSTERS})")
    parser.add_argument("--seconds", type=float, help=f"of the measurement at rest (default {REST:g})")
    arguments = parser.parse_args()
    clusters = arguments.clusters or (QUICK_CLUSTERS if arguments.quick else CLUSTERS)
    rest = arguments.seconds or (QUICK_REST if arguments.quick else REST)
    return report(arguments, measure(clusters, rest, QUICK_MANY if arguments.quick else MANY))


if __name__ == "__main__":
    sys.exit(main())
