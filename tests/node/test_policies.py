"""The chart's NetworkPolicies, enforced: required flows work, and unneeded flows are refused.

Each flow is tried from the network of a pod, as its processes would. A refused one works without enforcement: a port
without a listener gets one in the pod's network.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.node.lab import network, policies
from tests.node.lab.cluster import Cluster
from tests.node.lab.command import succeeds
from tests.node.world import AGENT_NAMESPACE, HUB_NAMESPACE, InstalledQuickstart
from tests.support.wait import wait_for

#: A port that no process of ours has, at which every pod gets a listener.
OTHER = 9999
API_SERVER = ("api", 443)
#: The components that connect to Redis.
_NAMES = ("hub", "flower")
#: From which pod to which one, at which port. `scorer` and `scraper` are pods of other namespaces of the hub; the
#: Source of a Prometheus: one outside of the admitted namespaces, and one inside.
FORBIDDEN = [
    *(("scorer", "hub", 8080), ("scorer", "hub", 8081), ("scorer", "hub", OTHER)),
    *(("scraper", "redis", OTHER), ("scorer", "flower", 5555), ("scorer", "redis", OTHER)),
    # Agents connect through the hub's API server.
    ("scorer", "redis", 6379),
    *(("flower", *API_SERVER), ("flower", "scorer", 8000), ("redis", "hub", 8080)),
]
NEEDED = [
    *(("scraper", "hub", 8080), ("scraper", "hub", 8081)),
    *(("hub", *API_SERVER), ("hub", "scorer", 8000)),
    *((component, "redis", 6379) for component in _NAMES),
    *((component, "dns", 53) for component in _NAMES),
]
_CONNECT = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"
_LISTEN = f"""
import socket
with socket.create_server(("", {OTHER}), family=socket.AF_INET) as server:
    while True:
        server.accept()[0].close()
"""


class Pods:
    """Pods of a cluster by a short name: their addresses, and their networks."""

    def __init__(self, world: InstalledQuickstart, cluster: Cluster, selectors: dict[str, tuple[str, str]]) -> None:
        self.addresses = {"api": "10.96.0.1", "dns": network.DNS}
        self.pids: dict[str, int] = {}
        for name, (namespace, selector) in selectors.items():
            pod = world.wait_ready(cluster, namespace, selector)[0]
            self.addresses[name] = pod["status"]["podIP"]
            self.pids[name] = cluster.node.pid(pod["status"]["containerStatuses"][0]["containerID"])

    def can_connect(self, source: str, target: str, port: int) -> bool:
        """Whether a process in the source's network reaches that port of the target."""
        command = [sys.executable, "-c", _CONNECT, self.addresses[target], str(port)]
        return succeeds("nsenter", f"--target={self.pids[source]}", "--net", *command)

    @contextlib.contextmanager
    def listeners(self) -> Iterator[None]:
        """In every pod's network one at the port that no process of ours has."""
        started = [
            subprocess.Popen(["nsenter", f"--target={pid}", "--net", sys.executable, "-c", _LISTEN])
            for pid in self.pids.values()
        ]
        try:
            yield
        finally:
            for process in started:
                process.kill()
                process.wait()


pytestmark = pytest.mark.usefixtures("own_nodes")


@contextlib.contextmanager
def _scraper(world: InstalledQuickstart) -> Iterator[None]:
    """A pod whose network a Prometheus could have, in a namespace that the chart admits."""
    image = world.pods(world.hub, AGENT_NAMESPACE, "app=sample-scorer")[0]["spec"]["containers"][0]["image"]
    world.hub.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring"}})
    container = {
        "name": "scraper",
        "image": image,
        "command": ["sleep", "infinity"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    metadata = {"name": "scraper", "namespace": "monitoring", "labels": {"app": "scraper"}}
    spec = {"containers": [container], "securityContext": security, "automountServiceAccountToken": False}
    world.hub.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    try:
        yield
    finally:
        world.hub.kubectl("delete", "pod", "scraper", "-n", "monitoring", "--now")


@pytest.fixture(scope="module")
def hub_pods(world: InstalledQuickstart) -> Iterator[Pods]:
    component = "app.kubernetes.io/component={}"
    selectors = {name: (HUB_NAMESPACE, component.format(name)) for name in ("redis", *_NAMES)}
    selectors |= {"scorer": (AGENT_NAMESPACE, "app=sample-scorer"), "scraper": ("monitoring", "app=scraper")}
    with _scraper(world):
        pods = Pods(world, world.hub, selectors)
        with pods.listeners():
            yield pods


@pytest.fixture(scope="module")
def agent_pods(world: InstalledQuickstart) -> Iterator[Pods]:
    selectors = {
        "agent": (AGENT_NAMESPACE, "app=dynamic-scoring-agent"),
        "prometheus": ("monitoring", "app=prometheus"),
    }
    pods = Pods(world, world.managed["cluster1"], selectors)
    with pods.listeners():
        yield pods


def _try_flows(pods: Pods, flows: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    """Return the results of all flows, tried in parallel, because each refusal takes the whole timeout of a
    connection.
    """
    with ThreadPoolExecutor(len(flows)) as pool:
        reached = pool.map(lambda flow: pods.can_connect(*flow), flows)
        return [flow for flow, works in zip(flows, reached, strict=True) if not works]


def test_flows_work_without_enforcement(hub_pods: Pods, agent_pods: Pods) -> None:
    """Without this test a refusal would prove nothing."""
    wait_for(lambda: not _try_flows(hub_pods, FORBIDDEN + NEEDED), 30, "all flows")
    wait_for(lambda: agent_pods.can_connect("prometheus", "agent", OTHER), 30, "a listener in the agent's pod")


def test_network_policies_allow_only_needed_flows(world: InstalledQuickstart, hub_pods: Pods) -> None:
    with policies.enforced(world.hub) as pods:
        assert pods >= 3
        assert _try_flows(hub_pods, FORBIDDEN) == FORBIDDEN
        # On a busy machine a connection may take longer than it is tried for.
        wait_for(lambda: not _try_flows(hub_pods, NEEDED), 30, "every flow that is needed")
        world.rescore()


def test_agent_exposes_its_metrics_only(world: InstalledQuickstart, agent_pods: Pods) -> None:
    with policies.enforced(world.managed["cluster1"]):
        assert not agent_pods.can_connect("prometheus", "agent", OTHER)
        for flow in (("prometheus", "agent", 8080), ("agent", "prometheus", 9090)):
            wait_for(lambda flow=flow: agent_pods.can_connect(*flow), 30, f"{flow}")
        world.rescore()
