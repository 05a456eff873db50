"""Free memory of real Node and Pod objects steers a Placement; and what a missing metric does to one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsf.errors import ObjectNotFoundError
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, DYNAMIC_SCORERS
from dsf.up.stack import http_ready
from tests.e2e.managedcluster import NAMESPACE
from tests.e2e.world import CLUSTERS, DECISIONS, HUB_NAMESPACE, ROOT, World
from tests.integration.sources.cluster import RULES, add_node, add_pod, end_pod
from tests.support.controlplane_fixtures import programs_needed
from tests.support.redisserver import free_port
from tests.support.wait import wait_for

pytestmark = pytest.mark.xdist_group("e2e")

SAMPLE = ROOT / "samples" / "resource-usage-scorer"
#: GiB that the nodes of each cluster have.
MEMORY = {"cluster1": (32, 32), "cluster2": (96, 32)}


class ResourceWorld(World):
    """The world with nodes and with the sample, whose manifests are those of its folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sample_url = f"http://127.0.0.1:{free_port()}"

    def __enter__(self) -> ResourceWorld:
        super().__enter__()
        options = ("--app-dir", str(SAMPLE), "--port", self.sample_url.rpartition(":")[2], "--log-level", "warning")
        self._run("sample", sys.executable, "-m", "uvicorn", *options, "app:app", SCORE_INTERVAL=2)
        for name, sizes in MEMORY.items():
            admin = self.admin(name)
            admin.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
            for number, size in enumerate(sizes):
                add_node(admin, f"n{number}", cpu="8", memory=f"{size}Gi")
        wait_for(http_ready(f"{self.sample_url}/healthz"), 30, self.children["sample"].tail())
        return self

    def admin(self, cluster: str) -> Any:
        """A managed cluster's API server."""
        return self.clusters[cluster].spoke.session

    def apply_sample(self, name: str) -> None:
        """`kubectl apply` a manifest of the sample, with the address at which it runs here."""
        text = (SAMPLE / "manifests" / name).read_text()
        text = text.replace("http://resource-usage-scorer.dynamic-scoring.svc:8000", self.sample_url)
        self.hub.kubectl("apply", "-f", "-", stdin=text)

    def items(self, cluster: str, score: str) -> dict[str, int] | None:
        """The items of an AddOnPlacementScore; None when it is not there."""
        try:
            obj = self.session.get(ADDON_PLACEMENT_SCORES.path(cluster, score))
        except ObjectNotFoundError:
            return None
        return {item["name"]: item["value"] for item in (obj.get("status") or {}).get("scores") or []}

    def chosen(self, placement: str) -> list[str]:
        """What a Placement in the namespace default chose."""
        selector = f"cluster.open-cluster-management.io/placement={placement}"
        answer = self.session.request("GET", DECISIONS.path("default"), query={"labelSelector": selector})
        statuses = [item.get("status") or {} for item in answer["items"]]
        return [decision["clusterName"] for status in statuses for decision in status.get("decisions") or []]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResourceWorld]:
    with programs_needed():
        made = ResourceWorld(tmp_path_factory.mktemp("world"))
    with made:
        made.kubectl_apply("resource-usage.yaml")
        made.apply_sample("dynamicscorer.yaml")
        made.apply_sample("placement.yaml")
        yield made


def eventually(world: World, condition: Callable[[], object], what: str, timeout: float = 30) -> None:
    began = time.monotonic()
    try:
        wait_for(condition, timeout, what, interval=0.05)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{world.logs()}") from None
    print(f"{what}: {time.monotonic() - began:.2f} s")


def test_without_the_role_the_scorers_status_says_so(world: ResourceWorld) -> None:
    def failures() -> list[str]:
        obj = world.session.get(DYNAMIC_SCORERS.path(HUB_NAMESPACE, "resource-usage-scorer"))
        return [f"{one['reason']}: {one['message']}" for one in (obj.get("status") or {}).get("failures") or []]

    def are_told() -> bool:
        found = failures()
        assert all(one.startswith("unauthorized") for one in found)
        return any("ClusterRole with get, list and watch of nodes" in one for one in found)

    eventually(world, are_told, "why")
    for cluster in world.clusters.values():
        cluster.plane.set_rules(NAMESPACE, "agent", RULES)


def test_each_cluster_has_all_items(world: ResourceWorld) -> None:
    for cluster in CLUSTERS:
        eventually(world, lambda cluster=cluster: world.items(cluster, "resource-usage-score"), f"scores of {cluster}")
    first = world.items("cluster1", "resource-usage-score") or {}
    assert first == {
        "cpuNodeAvailable": -84,
        "cpuClusterAvailable": -68,
        "cpuAvailable": -68,
        "memNodeAvailable": -93,
        "memClusterAvailable": -87,
        "memAvailable": -87,
        "gpuNodeAvailable": -100,
        "gpuClusterAvailable": -100,
        "tpuNodeAvailable": -100,
        "tpuClusterAvailable": -100,
    }


def test_a_placement_takes_the_cluster_with_more_free_memory(world: ResourceWorld) -> None:
    eventually(world, lambda: world.chosen("most-memory") == ["cluster2"], "128 GiB are more than 64")
    add_pod(world.admin("cluster2"), "default", "large", "n0", memory="90Gi")
    eventually(world, lambda: world.chosen("most-memory") == ["cluster1"], "64 GiB are more than 38")
    end_pod(world.admin("cluster2"), "default", "large")
    eventually(world, lambda: world.chosen("most-memory") == ["cluster2"], "the pod has ended")


def test_a_missing_score_beats_a_negative_one_unless_when_empty_says_otherwise(world: ResourceWorld) -> None:
    # Only cluster1 has the metric, and its score is negative.
    world.measure(cluster1=-20)
    eventually(
        world, lambda: world.items("cluster1", "sample-my-score") == {"sample_my_score": -20}, "cluster1's score"
    )
    eventually(world, lambda: world.items("cluster2", "sample-my-score") == {}, "cluster2's valid, empty score")
    eventually(world, lambda: world.chosen("headroom") == ["cluster2"], "the trap: nothing counts as 0")
    patch = '{"spec":{"execution":{"whenEmpty":{"behavior":"Value","value":-100}}}}'
    scorer = ("dynamicscorer", "headroom", "-n", HUB_NAMESPACE)
    world.hub.kubectl("patch", *scorer, "--type=merge", "-p", patch)
    eventually(world, lambda: world.items("cluster2", "sample-my-score") == {"sample_my_score": -100}, "the low score")
    eventually(world, lambda: world.chosen("headroom") == ["cluster1"], "the way out of the trap")
