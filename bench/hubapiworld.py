"""The fleet of `bench.fleet` whose agents reach Redis through an API server: `--hub-api`.

The agents and the kube-apiserver are real; `bench.portforward` stands in for the kubelet.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import psutil

from bench.fleetworld import Agents, FleetFigures
from bench.kubeworld import SERVERS
from bench.realworld import AGENTS, RealApi, RealWorld
from dsf.kube.resources import PODS, Resource
from dsf.up.ports import Ports
from tests.support.controlplane import ControlPlane
from tests.support.redisserver import is_listening

KUBELET: Final = "kubelet's stand-in"
#: Seconds of the measurement without agents.
_IDLE_SECONDS: Final = 20.0
_NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
POD: Final = "dynamic-scoring-redis-0"
RULE: Final = {
    "apiGroups": [""],
    "resources": ["pods/portforward"],
    "resourceNames": [POD],
    "verbs": ["get", "create"],
}


class SlowApi(RealApi):
    """A RealApi with an interval that a hundred agents on a few cores can keep."""

    interval = 150


class HubApiWorld(RealWorld):
    """A RealWorld with an API server between agents and Redis."""

    #: Processes between agents and Redis, in this order.
    servers: tuple[str, ...] = ("kube-apiserver", "etcd", KUBELET)

    def __init__(self, folder: Path, api: str, clusters: int, workers: int, redis_server: Path | None = None) -> None:
        super().__init__(folder, api, clusters, workers, redis_server)
        self._plane = ControlPlane(crds=False)
        self._ports = Ports(lambda _: None)
        #: Target of the agents' port-forwards, and the kubeconfig for them.
        self.redis_pod, self.kubeconfig = "", Path()
        #: Bytes and cores of the servers before the first agent was started.
        self._idle_bytes: dict[str, int] = {}
        self._idle_cores: dict[str, float] = {}

    def __exit__(self, *reason: object) -> None:
        try:
            super().__exit__(*reason)
        finally:
            self._plane.stop()

    def _prepare(self) -> None:
        super()._prepare()
        self._start_servers()

    def _start_servers(self) -> None:
        self._plane.start()
        for child in psutil.Process().children(recursive=True):
            if (name := child.name()) in SERVERS:
                self.processes.adopt(name, child.pid)
        port = self._ports.any()
        certificate = self._plane.certificate
        self.processes.start(
            KUBELET,
            "bench.portforward",
            self._environment(role="hub"),
            *("--to", str(self._redis_port()), "--port", str(port), "--certificate", str(certificate)),
        )
        self._wait_until(lambda: is_listening(port), "the kubelet's stand-in")
        namespace = self._plane.namespace("hub")
        self._plane.kubectl("create", "serviceaccount", "default", "-n", namespace)
        session = self._plane.session()
        session.create(_NODES.path(), {"metadata": {"name": "node"}})
        node_status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        session.merge(_NODES.path(name="node", subresource="status"), {"status": node_status})
        spec = {"nodeName": "node", "containers": [{"name": "redis", "image": "redis"}]}
        session.create(PODS.path(namespace), {"metadata": {"name": POD}, "spec": spec})
        pod_path = PODS.path(namespace, POD, "status")
        session.merge(pod_path, {"status": {"phase": "Running"}})
        self.redis_pod = f"{namespace}/{POD}:6379"
        self.kubeconfig = self._plane.service_account(namespace, "agent", [RULE])

    def _agents(self) -> Agents:
        cpu_before = self.processes.cpu()
        time.sleep(_IDLE_SECONDS)
        cpu_after, self._idle_bytes = self.processes.cpu(), self.processes.memory()
        self._idle_cores = {name: (cpu_after[name] - cpu_before[name]) / _IDLE_SECONDS for name in self.servers}
        return super()._agents()

    def _redis_port(self) -> int:
        return int(self.client.connection_pool.connection_kwargs["port"])

    def _make_redis_settings(self) -> dict[str, object]:
        return {
            "redis_url": self.redis_url.replace(f":{self._redis_port()}/", f":{self._ports.any()}/"),
            "redis_pod": self.redis_pod,
            "hub_kubeconfig": self.kubeconfig,
        }

    def cost(self, measured: FleetFigures) -> tuple[str, float]:
        """Return the servers' costs above idle as text, and the API server's CPU seconds for 1,000 cycles."""
        agents = len(self.clusters)
        seconds = {
            name: (measured.cores[name] - self._idle_cores[name]) * measured.seconds / max(measured.cycles, 1) * 1000
            for name in self.servers
        }
        costs = [
            f"{name} {seconds[name]:.2f} s, {(measured.memory[name] - self._idle_bytes[name]) / agents / 2**20:.2f} MiB"
            for name in self.servers
        ]
        # Commands use a connection too, whose name is also that of the hub's.
        connections = sum(str(client["name"]).startswith("dsf-agent-") for client in self.client.client_list())
        text = (
            f"CPU for 1,000 cycles of {measured.cycles}, memory for each agent: {', '.join(costs)}; "
            f"{1 + connections / agents:.1f} connections for each; "
            f"an agent has {measured.memory[AGENTS] / agents / 2**20:.0f} MiB"
        )
        return text, seconds[self.servers[0]]
