"""docs/redis.md and docs/upgrade.md on real pods: the loss of the node that runs Redis, with and without a volume, and
the backup of a hub."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.docs import pages
from tests.node import installation
from tests.node.installation import place_test_pod
from tests.node.lab import clusters, images, network
from tests.node.lab.command import say
from tests.node.lab.noderuntime import NodeRuntime
from tests.node.world import AGENT_NAMESPACE, HUB_NAMESPACE, MANAGED, InstalledQuickstart
from tests.support.wait import wait_for

pytestmark = pytest.mark.usefixtures("own_nodes")

_REDIS_PAGE, _BACKUP_PAGE = (pages.ROOT / "docs" / name for name in ("redis.md", "upgrade.md"))
_POD, _STATEFUL_SET = "dynamic-scoring-redis-0", "statefulset/dynamic-scoring-redis"
_SELECTOR = "app.kubernetes.io/component=redis"
#: An override in seconds.
_OVERRIDE = 31
#: Seconds after which Kubernetes gives up a silent node (kube-controller-manager's --node-monitor-grace-period), and
#: Seconds after which another node runs Redis.
_GIVEN_UP, _MOVED = 60, 20


@pytest.fixture(autouse=True)
def _hub_context(world: InstalledQuickstart) -> None:
    """Set the context for commands of these pages, and judge cycles of earlier files while Redis has them."""
    world.judge()
    world.type("kubectl config use-context kind-hub")


def _intervals(world: InstalledQuickstart) -> dict[str, int]:
    """Pair -> interval in force, of all scorers."""
    entries = json.loads(world.dsf("schedule", "list", "--output", "json"))["entries"]
    return {f"{entry['cluster']}/{entry['scorer']}": entry["intervalSeconds"] for entry in entries}


def _list_runs(world: InstalledQuickstart) -> set[str]:
    return {cycle["runId"] for name in MANAGED for cycle in world.history(name)["cycles"]}


def _scoring(world: InstalledQuickstart) -> dict[str, Any]:
    """DynamicScorer -> clusters that succeed and its condition Ready, as its status has them."""
    return {
        scorer["metadata"]["name"]: (
            scorer["status"]["clusters"]["succeeding"],
            {condition["type"]: condition["status"] for condition in scorer["status"]["conditions"]}["Ready"],
        )
        for scorer in world.hub.items("dynamicscorers", "-A")
    }


def test_documented_commands_move_redis_off_a_lost_node(world: InstalledQuickstart) -> None:
    """With a volume, which is on this node alone: Redis runs again with its data once the node is back."""
    world.dsf("schedule", "set", "sample-scorer", "--interval", str(_OVERRIDE))
    commands = [
        command.text for command in pages.commands(_REDIS_PAGE) if "LOST-NODE" in command.text or _POD in command.text
    ]
    release = [text for text in commands if "taint" in text or "--force" in text]
    (wait,) = [text for text in commands if " wait " in text]
    kubelet = world.hub.daemon("kubelet")
    kubelet.stop()
    try:
        is_lost = ("wait", "--for=condition=Ready=Unknown", f"node/{world.hub.name}", "--timeout=90s")
        world.hub.kubectl(*is_lost, timeout=120)
        for text in release:
            world.type(text.replace("LOST-NODE", world.hub.name))
    finally:
        world.hub.node.start_kubelet(world.hub)
    world.hub.kubectl("taint", "nodes", world.hub.name, "node.kubernetes.io/out-of-service-")
    world.type(wait)
    # The taint deletes all pods of the node, and no controller makes this one again.
    place_test_pod(world)
    world.settle()
    try:
        assert {_intervals(world)[f"{name}/sample-scorer"] for name in MANAGED} == {_OVERRIDE}
    finally:
        world.dsf("schedule", "reset", "sample-scorer")


@pytest.fixture
def second_node(world: InstalledQuickstart) -> Iterator[NodeRuntime]:
    """A second node of the hub, which alone runs Redis without a volume."""
    before = world.revision()
    with clusters.second_node(world.hub, images.VALKEY) as node:
        commands = [command.text for command in pages.commands(_REDIS_PAGE)]
        try:
            for text in commands:
                if "delete statefulset" in text or "persistence.enabled" in text:
                    world.type(text)
            for workload in (_STATEFUL_SET, "deployment"):
                labels = () if "/" in workload else ("-l", "app.kubernetes.io/name=dynamic-scoring-framework")
                world.hub.kubectl(
                    "-n", HUB_NAMESPACE, "rollout", "status", workload, *labels, "--timeout=180s", timeout=200
                )
            _move_redis(world, node)
            yield node
        finally:
            world.hub.kubectl("uncordon", world.hub.name)
            # A volume cannot be added to a StatefulSet either.
            world.hub.kubectl("-n", HUB_NAMESPACE, "delete", _STATEFUL_SET, "--ignore-not-found")
            world.helm("rollback", str(before), "--wait --timeout 8m")
    world.settle()


def _move_redis(world: InstalledQuickstart, node: NodeRuntime) -> None:
    world.hub.kubectl("cordon", world.hub.name)
    world.hub.kubectl("uncordon", node.name)
    world.hub.kubectl("-n", HUB_NAMESPACE, "delete", "pod", _POD, timeout=60)
    wait_for(lambda: _runs_on(world, node.name), 90, f"Redis on {node.name}", interval=0.5)
    world.hub.kubectl("uncordon", world.hub.name)


def _runs_on(world: InstalledQuickstart, node_name: str) -> bool:
    (pod,) = world.all_ready(world.hub, HUB_NAMESPACE, _SELECTOR)
    return bool(pod["spec"]["nodeName"] == node_name)


def test_redis_without_a_volume_moves_to_another_node_and_is_filled_again(
    world: InstalledQuickstart, second_node: NodeRuntime
) -> None:
    world.settle()
    world.dsf("schedule", "set", "sample-scorer", "--cluster", "cluster1", "--interval", str(_OVERRIDE))
    world.rescore()
    intervals, statuses, runs = _intervals(world), _scoring(world), _list_runs(world)
    assert intervals["cluster1/sample-scorer"] == _OVERRIDE

    network.unplug(second_node.address)
    second_node.cut_power()
    began = time.monotonic()
    is_lost = ("wait", "--for=condition=Ready=Unknown", f"node/{second_node.name}", f"--timeout={_GIVEN_UP}s")
    world.hub.kubectl(*is_lost, timeout=_GIVEN_UP + 20)
    given_up = time.monotonic() - began
    wait_for(lambda: _runs_on(world, world.hub.name), _MOVED, "Redis on the other node", interval=0.2)
    moved = time.monotonic() - began
    world.settle()
    scoring = time.monotonic() - began
    say(f"Redis without a volume: node given up after {given_up:.0f} s, moved after {moved:.0f}, cycles {scoring:.0f}")

    # The hub has written registry, entries and users: cycles of all clusters succeed, and no pair is missing.
    assert _intervals(world) == {**intervals, "cluster1/sample-scorer": intervals["cluster2/sample-scorer"]}
    wait_for(lambda: _scoring(world) == statuses, 90, f"the statuses to be {statuses}", interval=1)
    # Histories and counters start empty.
    assert not runs & _list_runs(world)
    for name in MANAGED:
        assert world.history(name)["books"]["scheduled"] < 20


def test_documented_backup_restores_an_emptied_hub(world: InstalledQuickstart, tmp_path: Path) -> None:
    """Everything on the hub is lost, with the volume: its namespace, the CRDs and all their objects."""
    world.dsf("schedule", "set", "sample-scorer", "--cluster", "cluster1", "--interval", str(_OVERRIDE))
    world.rescore()
    scorers, secret, runs = _scoring(world), _agents_secret(world), _list_runs(world)
    world.type(f"ln -s $PWD/deploy {tmp_path}/deploy; CHECKOUT=$PWD; cd {tmp_path}")
    world.type('dsf() { kubectl -n open-cluster-management exec dynamic-scoring-test -- dsf "$@"; }')
    try:
        for text in _read_section("Before the upgrade"):
            world.type(text)
        # Uninstallation, and removal of everything that it keeps; a sudden loss of the hub would leave the agents
        # unchanged.
        installation.uninstall(world)
        installation.forget(world)
        world.hub.kubectl("delete", "namespace", HUB_NAMESPACE, timeout=180)
        for text in _read_section("Restore"):
            world.type(text)
    finally:
        world.type('cd "$CHECKOUT"; unset -f dsf')
    place_test_pod(world)
    world.settle()

    wait_for(lambda: _scoring(world) == scorers, 90, f"the statuses to be {scorers}", interval=1)
    assert _agents_secret(world) == secret, "the master secret makes the same credentials"
    # Only the schedule's overrides in the backup remain of Redis' data.
    assert not runs & _list_runs(world)
    assert _intervals(world)["cluster1/sample-scorer"] == 30
    saved_entries = json.loads((tmp_path / "schedule.json").read_text())["entries"]
    for target, interval in {
        override["target"]: override["intervalSeconds"] for entry in saved_entries for override in entry["overrides"]
    }.items():
        cluster, _, scorer = target.partition("/")
        of_cluster = () if cluster == "*" else ("--cluster", cluster)
        world.dsf("schedule", "set", scorer, *of_cluster, "--interval", str(interval))
    assert _intervals(world)["cluster1/sample-scorer"] == _OVERRIDE
    world.dsf("schedule", "reset", "sample-scorer")


def _read_section(title: str) -> Iterator[str]:
    lines = _BACKUP_PAGE.read_text().splitlines()
    first = lines.index(f"## {title}") + 1
    last = next(number for number, line in enumerate(lines[first:], first) if line.startswith("## "))
    yield from (command.text for command in pages.commands(_BACKUP_PAGE) if first < command.line <= last)


def _agents_secret(world: InstalledQuickstart) -> dict[str, str]:
    """Return the credentials of the agent of cluster1."""
    (secret,) = world.managed["cluster1"].items(
        "secrets", "-n", AGENT_NAMESPACE, "--field-selector=metadata.name=dynamic-scoring-agent-credentials"
    )
    credentials: dict[str, str] = secret["data"]
    return credentials
