"""Memory and CPU of each pod, at rest and with twenty scorers at 5 s, beside the chart's requests and limits."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

from tests.node.lab.cluster import Cluster
from tests.node.lab.command import say
from tests.node.world import AGENT_NAMESPACE, HUB_NAMESPACE, MANAGED, InstalledQuickstart
from tests.support.wait import wait_for

#: Additional scorers, and their interval in seconds.
SCORERS, INTERVAL = 20, 5
#: Looks at the pods, and seconds between two: kubelet's own figures are 10 s old at most.
LOOKS, PAUSE = 4, 6
#: A limit must be this many times the highest that was seen.
HEADROOM = 1.5
#: A request is at least the median, and at most this many times it. Requests follow resident memory (bench/rest.py);
#: kubelet's working set lacks the pages of libraries that pods share.
NEAR = 2.5
#: Its memory depends on the fleet's data: the request is for a large fleet, unlike these two clusters.
GROWS = {"redis"}
_MI = 1024 * 1024


def _usage(cluster: Cluster, namespace: str, pods: set[str]) -> dict[tuple[str, str], tuple[int, float]]:
    """(Pod, container) -> working set in bytes and CPU time in seconds so far."""
    path = f"/api/v1/nodes/{cluster.name}/proxy/stats/summary"
    summary = json.loads(cluster.kubectl("get", "--raw", path))
    usage: dict[tuple[str, str], tuple[int, float]] = {}
    for pod in summary["pods"]:
        name = pod["podRef"]["name"]
        if pod["podRef"]["namespace"] == namespace and name in pods:
            for container in pod["containers"]:
                memory_stats, cpu = container.get("memory", {}), container.get("cpu", {})
                seconds = cpu.get("usageCoreNanoSeconds", 0) / 1e9
                usage[name, container["name"]] = memory_stats.get("workingSetBytes", 0), seconds
    return usage


@dataclass
class Seen:
    """Usage of one kind of container: bytes of each sample, and the share of a core between the first and the last
    sample.
    """

    memory: list[int]
    cores: float = 0.0


def _watch(world: InstalledQuickstart) -> dict[str, Seen]:
    """Sample every container LOOKS times; of several with the same name, the one with the highest usage counts."""
    usage_by_container: dict[str, Seen] = {}
    first: dict[tuple[str, str], tuple[float, float]] = {}
    for _ in range(LOOKS):
        time.sleep(PAUSE)  # a sample, not a wait for something
        for cluster, namespace in _list_places(world):
            pods = {pod["metadata"]["name"] for pod in world.pods(cluster, namespace)}
            memory_by_container: dict[str, int] = {}
            for (pod, name), (memory, seconds) in _usage(cluster, namespace, pods).items():
                memory_by_container[name] = max(memory_by_container.get(name, 0), memory)
                now = time.monotonic()
                began, spent = first.setdefault((pod, name), (now, seconds))
                usage = usage_by_container.setdefault(name, Seen([]))
                if now > began:
                    usage.cores = max(usage.cores, (seconds - spent) / (now - began))
            for name, memory in memory_by_container.items():
                usage_by_container[name].memory.append(memory)
    return usage_by_container


def _list_places(world: InstalledQuickstart) -> list[tuple[Cluster, str]]:
    return [
        (world.hub, HUB_NAMESPACE),
        *((managed_cluster, AGENT_NAMESPACE) for managed_cluster in world.managed.values()),
    ]


def _resources(world: InstalledQuickstart, cluster: Cluster, namespace: str) -> dict[str, dict[str, Any]]:
    pods = world.pods(cluster, namespace)
    return {c["name"]: c.get("resources", {}) for pod in pods for c in pod["spec"]["containers"]}


def _bytes(quantity: str) -> int:
    units = {"Ki": 1024, "Mi": _MI, "Gi": 1024 * _MI}
    return int(quantity[:-2]) * units[quantity[-2:]] if quantity[-2:] in units else int(quantity)


def _scorer(world: InstalledQuickstart, number: int) -> dict[str, Any]:
    (page,) = world.hub.items("dynamicscorers", "-n", HUB_NAMESPACE, "--field-selector=metadata.name=cluster-free")
    spec = json.loads(json.dumps(page["spec"]))
    spec["scoring"]["params"] |= {"name": f"load_{number}", "interval": INTERVAL}
    return {
        "apiVersion": page["apiVersion"],
        "kind": page["kind"],
        "metadata": {"name": f"load-{number}", "namespace": HUB_NAMESPACE, "labels": {"load": "true"}},
        "spec": spec,
    }


def test_limits_have_headroom_and_requests_are_near_with_twenty_scorers(world: InstalledQuickstart) -> None:
    usage_at_rest = _watch(world)
    for number in range(SCORERS):
        world.hub.apply(_scorer(world, number))
    try:

        def all_score() -> bool:
            return all(world.score(name, f"load-{number}") for name in MANAGED for number in range(SCORERS))

        wait_for(all_score, 180, "a score of every scorer on both clusters", interval=2)
        busy = _watch(world)
    finally:
        world.hub.kubectl("-n", HUB_NAMESPACE, "delete", "dynamicscorers", "-l", "load=true", timeout=180)
    resources_of = {
        name: resources
        for cluster, namespace in _list_places(world)
        for name, resources in _resources(world, cluster, namespace).items()
    }
    problems = []
    for name, usage in sorted(busy.items()):
        limit = resources_of[name].get("limits", {}).get("memory")
        request = resources_of[name].get("requests", {}).get("memory")
        middle, peak = statistics.median(usage.memory), max(usage.memory + usage_at_rest[name].memory)
        say(
            f"{name}: at rest {statistics.median(usage_at_rest[name].memory) / _MI:.0f} MiB, "
            f"{usage_at_rest[name].cores * 1000:.0f} mCPU; "
            f"with {SCORERS} scorers {middle / _MI:.0f} MiB (at most {peak / _MI:.0f}), {usage.cores * 1000:.0f} mCPU; "
            f"requests {resources_of[name].get('requests')}, limits {resources_of[name].get('limits')}"
        )
        if limit and _bytes(limit) < HEADROOM * peak:
            problems.append(f"{name}: {peak / _MI:.0f} MiB were seen, its limit is {limit}")
        if name not in GROWS and not middle <= _bytes(request) <= middle * NEAR:
            problems.append(f"{name}: {middle / _MI:.0f} MiB in the middle, its request is {request}")
    assert not problems, problems
