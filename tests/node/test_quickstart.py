"""docs/quickstart.md, typed from its first line to its last, on a hub and two managed clusters with real pods."""

from __future__ import annotations

import datetime

import pytest

from tests.node.lab import clusters
from tests.node.lab.command import LabError
from tests.node.world import AGENT_IMAGE, AGENT_NAMESPACE, HUB_NAMESPACE, MANAGED, InstalledQuickstart, restarts
from tests.support.wait import wait_for

#: Takes most of a core, as Pod Security `restricted` lets it.
_BUSY = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "busy", "namespace": AGENT_NAMESPACE},
    "spec": {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "busy",
                "image": AGENT_IMAGE,
                "command": ["python", "-c", "while True: pass"],
                "resources": {"limits": {"cpu": "800m"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    },
}


def test_quickstart_commands_succeed(world: InstalledQuickstart) -> None:
    failed_commands = [str(typed) for typed in world.reader.typed if typed.code]
    assert not failed_commands, "\n\n".join(failed_commands)
    assert len(world.reader.typed) > 30


def test_pods_are_ready_without_restarts(world: InstalledQuickstart) -> None:
    namespaces = [
        (world.hub, HUB_NAMESPACE),
        *((managed_cluster, AGENT_NAMESPACE) for managed_cluster in world.managed.values()),
    ]
    for cluster, namespace in namespaces:
        world.wait_ready(cluster, namespace)
        for pod in world.pods(cluster, namespace):
            assert set(restarts(pod).values()) == {0}, restarts(pod)


def test_pods_of_managed_clusters_have_scores(world: InstalledQuickstart) -> None:
    for name, cluster in world.managed.items():
        running = {pod["metadata"]["name"] for pod in cluster.items("pods", "-A")}
        scored = {item.split(";")[-1] for item in world.score(name)}
        assert scored & running, f"{scored} are not of {running}"
        (score,) = world.hub.items("addonplacementscores", "-n", name, "--field-selector=metadata.name=sample-my-score")
        valid = datetime.datetime.fromisoformat(score["status"]["validUntil"])
        assert valid > datetime.datetime.now(datetime.UTC)


def test_addon_is_available_on_each_managed_cluster(world: InstalledQuickstart) -> None:
    def available(name: str) -> bool:
        (addon,) = world.hub.items("managedclusteraddons", "-n", name)
        conditions = {condition["type"]: condition["status"] for condition in addon["status"]["conditions"]}
        assert conditions["Available"] == "True", addon["status"]
        return True

    for name in MANAGED:
        wait_for(lambda name=name: available(name), 30, f"the addon on {name}", interval=1)


def test_pod_security_restricted_is_enforced(world: InstalledQuickstart) -> None:
    """All tests above ran under Pod Security: a pod without these restrictions is refused in all our namespaces."""
    namespaces = [
        (world.hub, HUB_NAMESPACE),
        *((managed_cluster, AGENT_NAMESPACE) for managed_cluster in world.managed.values()),
    ]
    for cluster, namespace in namespaces:
        with pytest.raises(LabError, match='violates PodSecurity "restricted'):
            cluster.kubectl("-n", namespace, "run", "loose", "--image=x", "--dry-run=server")


def test_agent_runs_as_any_user(world: InstalledQuickstart) -> None:
    """A cluster assigns a user id that the image does not have, as OpenShift does."""
    for name, uid in (("cluster1", 65532), (clusters.OTHER_USERS, 1000650000)):
        cluster = world.managed[name]
        (pod,) = world.wait_ready(cluster, AGENT_NAMESPACE)
        printed_uid = cluster.kubectl("-n", AGENT_NAMESPACE, "exec", pod["metadata"]["name"], "--", "id", "-u")
        assert printed_uid.strip() == str(uid)


def test_flower_responds_at_the_documented_address(world: InstalledQuickstart) -> None:
    """The page's port-forward still runs."""
    code = ("curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}")
    assert world.on_the_lan(*code, "http://localhost:5555/healthcheck") == "200"


def _read_chosen_cluster(world: InstalledQuickstart) -> str:
    """Return the cluster of the page's Placement; AssertionError unless it is the one with the highest score."""
    scores = {name: world.score(name, "cluster-free") for name in MANAGED}
    assert all(scores.values()), scores
    best = max(MANAGED, key=lambda name: scores[name]["cluster_free"])
    decisions = world.hub.items("placementdecisions", "-n", "default")
    selected_clusters = [
        decision["clusterName"]
        for placement_decision in decisions
        for decision in placement_decision["status"].get("decisions", [])
    ]
    assert selected_clusters == [best], f"{selected_clusters}, but scores are {scores}"
    return best


def test_placement_follows_the_scores(world: InstalledQuickstart) -> None:
    assert wait_for(lambda: _read_chosen_cluster(world), 120, "the Placement to have the better cluster", interval=1)


def test_placement_leaves_a_busy_cluster(world: InstalledQuickstart) -> None:
    before = wait_for(lambda: _read_chosen_cluster(world), 120, "the Placement to have the better cluster", interval=1)
    world.dsf("schedule", "set", "cluster-free", "--interval", "5")
    world.managed[before].apply(_BUSY)
    try:
        wait_for(lambda: _read_chosen_cluster(world) != before, 180, f"the Placement to leave {before}", interval=1)
    finally:
        world.managed[before].kubectl("-n", AGENT_NAMESPACE, "delete", "pod", "busy", "--grace-period=1")
        world.dsf("schedule", "reset", "cluster-free")
