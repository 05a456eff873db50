"""The fleet of `bench.fleet` whose agents reach Redis through a real API server and a real kubelet: `--kubelet`.

    python -m bench.kubeletworld [--clusters N] [--seconds S] [other options of bench.fleet]

As root, as for `make node`: starts the hub of the lab in tests/node/lab with one pod, and runs `bench.fleet` inside the
pod's network, so that its Redis serves on a port of the pod. Port-forwards take the way that they take in production:
API server, kubelet, containerd, the pod's network.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.common import ROOT
from bench.hubapiworld import POD, RULE, HubApiWorld
from tests.node.lab import clusters, folders
from tests.node.lab.cluster import Cluster
from tests.node.lab.noderuntime import PAUSE
from tests.support.wait import wait_for

_NAMESPACE: Final = "bench"
_GROUP: Final = "bench:agents"
_RBAC: Final = "rbac.authorization.k8s.io"
_POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": POD, "namespace": _NAMESPACE},
    "spec": {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "network",
                "image": PAUSE,
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    },
}


class KubeletWorld(HubApiWorld):
    """A HubApiWorld with the API server and the kubelet of a running cluster, inside the network of its pod."""

    servers = ("kube-apiserver", "etcd", "kubelet", "containerd")

    def _start_servers(self) -> None:
        hub = clusters.cluster("hub")
        for name in self.servers:
            pid = hub.daemon(name).pid
            if pid is None:
                raise SystemExit(f"no {name} runs: start this by `python -m bench.kubeletworld`")
            self.processes.adopt(name, pid)
        self.redis_pod = f"{_NAMESPACE}/{POD}:{self._redis_port()}"
        self.kubeconfig = hub.authority.path("bench.conf")


@contextmanager
def running_pod(hub: Cluster) -> Iterator[int]:
    """Add a pod to the hub, to which agents may forward ports, and yield the process id of its container."""
    with clusters.lock():
        clusters.prepare()
        try:
            clusters.up(hub.name)
            hub.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}})
            account = ("get", "serviceaccount", "default", "-n", _NAMESPACE)
            wait_for(lambda: hub.try_kubectl(*account), 60, "the namespace's ServiceAccount", interval=0.5)
            role = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": "agents", "namespace": _NAMESPACE}}
            binding = {
                "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": "agents"},
                "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": _GROUP}],
            }
            hub.apply(_POD, role | {"kind": "Role", "rules": [RULE]}, role | {"kind": "RoleBinding"} | binding)
            hub.authority.sign_client("bench", "agent", [_GROUP])
            hub.authority.kubeconfig("bench", hub.server)
            hub.kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "-n", _NAMESPACE, "--timeout=90s")
            (pod,) = hub.items("pods", "-n", _NAMESPACE)
            yield hub.node.pid(pod["status"]["containerStatuses"][0]["containerID"])
        finally:
            if not folders.KEPT.exists():
                clusters.down()


def main(arguments: list[str]) -> int:
    """Run `bench.fleet --kubelet` in the pod's network."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with running_pod(clusters.cluster("hub")) as pid:
        fleet = [sys.executable, "-m", "bench.fleet", "--kubelet", *arguments]
        return subprocess.run(["nsenter", f"--target={pid}", "--net", *fleet], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
