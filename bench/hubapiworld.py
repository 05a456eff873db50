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
from tests.support.redisserver import listens

KUBELET: Final = "kubelet's stand-in"
_API_SERVER: Final = "kube-apiserver"
#: Seconds of the measurement without agents.
_IDLE_SECONDS: Final = 20.0
_NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
_POD: Final = "dynamic-scoring-redis-0"
_RULE: Final = {
    "apiGroups": [""],
    "resources": ["pods/portforward"],
    "resourceNames": [_POD],
    "verbs": ["get", "create"],
}


class SlowApi(RealApi):
    """RealApi with an interval that a hundred agents on a few cores can keep."""

    interval = 150


class HubApiWorld(RealWorld):
    """As RealWorld, with an API server between agents and Redis."""

    def __init__(self, folder: Path, api: str, clusters: int, workers: int, redis_server: Path | None = None) -> None:
        super().__init__(folder, api, clusters, workers, redis_server)
        self._plane = ControlPlane(crds=False)
        self._ports = Ports(lambda _: None)
        self._namespace = ""
        self._kubeconfig = Path()
        #: Bytes and cores of the API server before the first agent was started.
        self._idle_bytes, self._idle_cores = 0, 0.0

    def __exit__(self, *reason: object) -> None:
        try:
            super().__exit__(*reason)
        finally:
            self._plane.stop()

    def _prepare(self) -> None:
        super()._prepare()
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
        self._until(lambda: listens(port), "the kubelet's stand-in")
        self._namespace = self._plane.namespace("hub")
        self._plane.kubectl("create", "serviceaccount", "default", "-n", self._namespace)
        session = self._plane.session()
        session.create(_NODES.path(), {"metadata": {"name": "node"}})
        node_status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        session.merge(_NODES.path(name="node", subresource="status"), {"status": node_status})
        spec = {"nodeName": "node", "containers": [{"name": "redis", "image": "redis"}]}
        session.create(PODS.path(self._namespace), {"metadata": {"name": _POD}, "spec": spec})
        pod_path = PODS.path(self._namespace, _POD, "status")
        session.merge(pod_path, {"status": {"phase": "Running"}})
        self._kubeconfig = self._plane.service_account(self._namespace, "agent", [_RULE])

    def _agents(self) -> Agents:
        before = self.processes.cpu()[_API_SERVER]
        time.sleep(_IDLE_SECONDS)
        self._idle_cores = (self.processes.cpu()[_API_SERVER] - before) / _IDLE_SECONDS
        self._idle_bytes = self.processes.memory()[_API_SERVER]
        return super()._agents()

    def _redis_port(self) -> int:
        return int(self.client.connection_pool.connection_kwargs["port"])

    def _way(self) -> dict[str, object]:
        return {
            "redis_url": self.redis_url.replace(f":{self._redis_port()}/", f":{self._ports.any()}/"),
            "redis_pod": f"{self._namespace}/{_POD}:6379",
            "hub_kubeconfig": self._kubeconfig,
        }

    def cost(self, measured: FleetFigures) -> tuple[str, float]:
        """Return what the API server costs above its idle state, in words, and its CPU seconds for 1,000 cycles."""
        cores = measured.cores[_API_SERVER] - self._idle_cores
        seconds = cores * measured.seconds / max(measured.cycles, 1) * 1000
        mebibytes = (measured.memory[_API_SERVER] - self._idle_bytes) / 2**20
        agents = len(self.clusters)
        # And one of each for commands, whose name is also that of the hub's.
        connections = sum(str(client["name"]).startswith("dsf-agent-") for client in self.client.client_list())
        text = (
            f"{seconds:.2f} s of CPU for 1,000 cycles of {measured.cycles}, {mebibytes / agents:.2f} MiB for each "
            f"agent; {1 + connections / agents:.1f} connections for each; "
            f"an agent has {measured.memory[AGENTS] / agents / 2**20:.0f} MiB"
        )
        return text, seconds
