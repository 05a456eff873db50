"""The hub on a real API server: the time to the first score, the cost of keeping it, and the cost of a large fleet.

    python -m bench.kube [--rounds 5] [--seconds 300] [--clusters 1000] [--json FILE]

Three measurements, each left out when its number is 0:

- `--rounds`: from `kubectl apply` of scorer and config to a populated AddOnPlacementScore on both of two clusters, with
  real agents, Prometheus, beat and results worker. Limit: 3 s.
- `--seconds`: requests that write, as the API server counts them, per cycle of 10 scorers on the two clusters every
  30 s with unchanged scores. A score is renewed after 60 % of its validity (300 s). Limit: 0.2. The renewals of leases
  are counted separately because they do not depend on scores.
- `--clusters`: one hub process and 10 scorers on this many clusters without agents: CPU seconds in 30 s of idleness,
  CPU and time until a mask is on all of them, memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dsf import keys
from dsf.api.types import API_VERSION, MANIFESTWORK_NAME
from dsf.kube.resources import MANIFEST_WORKS, Resource
from tests.e2e.managedcluster import METRIC, PROMETHEUS
from tests.e2e.world import CLUSTERS, HUB_NAMESPACE, MANIFESTS, OcmFleet
from tests.support.child import Child
from tests.support.controlplane import ControlPlane
from tests.support.httpserver import ScriptedServer, answer
from tests.support.redisserver import RedisServer
from tests.support.wait import wait_for

SCORERS, INTERVAL = 10, 30
IDLE_SECONDS = 30
MAX_SECONDS_TO_SCORE, MAX_WRITES_PER_CYCLE = 3.0, 0.2
_NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
_REQUESTS = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_WRITE_VERBS = {"POST", "PUT", "PATCH", "APPLY", "DELETE"}


def make_config_manifest(*masks: dict[str, str]) -> dict[str, Any]:
    """Return the DynamicScoringConfig with these masks."""
    return {
        "apiVersion": API_VERSION,
        "kind": "DynamicScoringConfig",
        "metadata": {"name": "dynamic-scoring-config", "namespace": HUB_NAMESPACE},
        "spec": {"masks": list(masks)},
    }


def make_scorer_manifest(number: int, url: str) -> dict[str, Any]:
    """Return a scorer with a complete spec, so that one scoring API serves many scorers."""
    return {
        "apiVersion": API_VERSION,
        "kind": "DynamicScorer",
        "metadata": {"name": f"scorer{number}", "namespace": HUB_NAMESPACE},
        "spec": {
            "description": "bench",
            "configURL": f"{url}/config",
            "configSyncMode": "None",
            "source": {
                "type": "Prometheus",
                "host": f"http://{PROMETHEUS}",
                "path": "/api/v1/query_range",
                "params": {"query": f"max by (node) ({METRIC})", "range": 60, "step": 10},
            },
            "scoring": {
                "host": url,
                "path": "/scoring",
                "params": {"name": f"score{number}", "interval": INTERVAL},
            },
            "scoreDimensionFormat": "${node}",
        },
    }


def count_writes(plane: ControlPlane) -> Counter[str]:
    """Return the write requests so far, by resource. Requests to a subresource are counted under its resource."""
    counts: Counter[str] = Counter()
    for labels, value in _REQUESTS.findall(plane.kubectl("get", "--raw", "/metrics")):
        label = dict(_LABEL.findall(labels))
        if label["verb"] in _WRITE_VERBS:
            counts[label["resource"]] += int(float(value))
    return counts


def measure_time_to_score(world: OcmFleet, rounds: int) -> list[float]:
    """Return the seconds from the start of `kubectl apply` until both clusters have a score, for each round."""
    text = (MANIFESTS / "scoring.yaml").read_text().replace("SCORER_URL", world.scorer_url)
    objects = list(yaml.safe_load_all(text))
    for obj in objects:
        # Remove spec.execution, so that the default validity applies.
        obj["spec"].pop("execution", None)
    text = yaml.safe_dump_all(objects)
    seconds = []
    for _ in range(rounds):
        began = time.monotonic()
        world.hub.kubectl("apply", "-f", "-", stdin=text)
        wait_for(lambda: all(world.values(cluster) for cluster in CLUSTERS), 60, "scores")
        seconds.append(time.monotonic() - began)
        world.hub.kubectl("delete", "--wait=true", "-f", "-", stdin=text)
        wait_for(lambda: not any(world.score(cluster) for cluster in CLUSTERS), 60, "no scores")
    return seconds


def measure_writes(world: OcmFleet, seconds: int) -> dict[str, Any]:
    """Measure the writes of 10 scorers on two clusters whose scores do not change."""
    scorers = [make_scorer_manifest(number, world.scorer_url) for number in range(SCORERS)]
    text = yaml.safe_dump_all([make_config_manifest(), *scorers])
    world.hub.kubectl("apply", "-f", "-", stdin=text)
    client = world.redis.client()
    pairs = [keys.pair_key(cluster, f"scorer{number}") for cluster in CLUSTERS for number in range(SCORERS)]

    def count_cycles() -> int:
        return sum(int(client.hget(pair, "n:ok") or 0) for pair in pairs)

    wait_for(lambda: count_cycles() >= len(pairs), 60, "the first cycle of each pair", interval=0.2)
    # The first cycles also change statuses, so they are not measured.
    time.sleep(10)
    writes_before, cycles_before = count_writes(world.hub), count_cycles()
    time.sleep(seconds)
    writes_after, cycles = count_writes(world.hub), count_cycles() - cycles_before
    new_writes = writes_after - writes_before
    leases = new_writes.pop("leases", 0)
    return {
        "cycles": cycles,
        "writes": dict(new_writes),
        "writes_per_cycle": round(sum(new_writes.values()) / cycles, 3),
        "lease_writes_per_second": round(leases / seconds, 2),
    }


class KubeFleet:
    """A hub process and many clusters without agents."""

    def __init__(self, folder: Path, clusters: int) -> None:
        self.plane = ControlPlane()
        self._redis = RedisServer()
        # The hub only sends health checks to it.
        self._scorer = ScriptedServer(answer("ok"))
        self._folder = folder
        self._names = [f"cluster{number:05}" for number in range(clusters)]
        self._hub: Child | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run all processes."""
        with self.plane, self._redis, self._scorer:
            session = self.plane.session()
            session.create(_NAMESPACES.path(), {"metadata": {"name": HUB_NAMESPACE}})

            self.plane.clusters(self._names)
            environment = {
                "DSF_REDIS_URL": self._redis.url,
                "DSF_TARGET": "controller",
                "DSF_PROBE_PORT": "0",
                "DSF_BACKEND": "kube",
                "DSF_KUBECONFIG": str(self.plane.kubeconfig),
                "DSF_LOG_LEVEL": "WARNING",
            }
            self._hub = Child([sys.executable, "-m", "dsf.hub"], self._folder / "hub.log", environment)
            try:
                yield
            finally:
                self._hub.kill()

    def measure(self) -> dict[str, Any]:
        """Return distribution times, CPU and memory of the hub."""
        assert self._hub is not None
        scorers = [make_scorer_manifest(number, self._scorer.url) for number in range(SCORERS)]
        began = time.monotonic()
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([make_config_manifest(), *scorers]))
        self._wait(SCORERS)
        first_distribution = time.monotonic() - began
        # Wait until the start-up work is done.
        time.sleep(IDLE_SECONDS)
        cpu = self._cpu()
        time.sleep(IDLE_SECONDS)
        idle = self._cpu() - cpu
        mask = {"clusterName": "*", "scoreName": "score0"}
        cpu, began = self._cpu(), time.monotonic()
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(make_config_manifest(mask)))
        self._wait(SCORERS - 1)
        mask_distribution = time.monotonic() - began
        # Wait until the statuses that follow are written.
        time.sleep(5)
        return {
            "clusters": len(self._names),
            "first_distribution_seconds": round(first_distribution, 1),
            "idle_cpu_percent": round(100 * idle / IDLE_SECONDS, 1),
            "mask_distribution_seconds": round(mask_distribution, 1),
            "mask_cpu_seconds": round(self._cpu() - cpu, 1),
            "hub_memory_mb": round(psutil.Process(self._hub.pid).memory_info().rss / 1e6),
        }

    def _cpu(self) -> float:
        assert self._hub is not None
        times = psutil.Process(self._hub.pid).cpu_times()
        return float(times.user + times.system)

    def _wait(self, scorers: int) -> None:
        """Wait until every cluster's ManifestWork has this many scorers."""
        session = self.plane.session()

        def is_done() -> bool:
            assert self._hub is not None
            if not self._hub.is_running:
                raise RuntimeError(f"the hub ended: {self._hub.tail()}")
            query = {"fieldSelector": f"metadata.name={MANIFESTWORK_NAME}"}
            works = session.request("GET", MANIFEST_WORKS.path(), query=query)["items"]
            texts = [work["spec"]["workload"]["manifests"][0]["data"]["summaries"] for work in works]
            return len(texts) == len(self._names) and all(len(json.loads(text)) == scorers for text in texts)

        # A long interval, because the list is large and the API server is busy.
        wait_for(is_done, 600, f"{scorers} scorers on all clusters; {self.plane.dir}", interval=1.0)


def measure(rounds: int, seconds: int, clusters: int) -> dict[str, Any]:
    """Return all requested figures."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="dsf-bench-") as name:
        folder = Path(name)
        if rounds or seconds:
            with OcmFleet(folder, interval=INTERVAL) as world:
                world.measure(cluster1=80, cluster2=20)
                for cluster in world.clusters.values():
                    wait_for(lambda cluster=cluster: cluster.is_ready and cluster.has_data, 60, cluster.name)
                if rounds:
                    delays = measure_time_to_score(world, rounds)
                    figures["apply_to_score_seconds"] = round(statistics.median(delays), 2)
                    figures["apply_to_score_longest"] = round(max(delays), 2)
                    figures["apply_to_score_rounds"] = [round(delay, 2) for delay in delays]
                if seconds:
                    figures |= measure_writes(world, seconds)
        if clusters:
            fleet = KubeFleet(folder, clusters)
            with fleet.running():
                figures["fleet"] = fleet.measure()
    return figures


def main() -> int:
    """Measure, print, and return the exit code, which shows whether the limits are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="registrations of a scorer")
    parser.add_argument("--seconds", type=int, default=300, help="how long to count writes")
    parser.add_argument("--clusters", type=int, default=1000, help="size of the fleet")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    arguments = parser.parse_args()
    figures = measure(arguments.rounds, arguments.seconds, arguments.clusters)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    for name, value in figures.items():
        print(f"{name:28} {value}")
    print(f"limits: apply_to_score_seconds < {MAX_SECONDS_TO_SCORE:g}, writes_per_cycle <= {MAX_WRITES_PER_CYCLE}")
    is_fast = figures.get("apply_to_score_seconds", 0) < MAX_SECONDS_TO_SCORE
    return 0 if is_fast and figures.get("writes_per_cycle", 0) <= MAX_WRITES_PER_CYCLE else 1


if __name__ == "__main__":
    sys.exit(main())
