"""A cluster: its control plane, and the nodes that run its pods."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.node.lab import folders, network
from tests.node.lab.certificates import Authority
from tests.node.lab.command import LabError, run
from tests.node.lab.daemon import Daemon, daemons
from tests.node.lab.noderuntime import NodeRuntime

_READY = 120.0
#: Namespaces without enforced Pod Security `restricted`: those of other projects.
_ADMISSION = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AdmissionConfiguration",
    "plugins": [
        {
            "name": "PodSecurity",
            "configuration": {
                "apiVersion": "pod-security.admission.config.k8s.io/v1",
                "kind": "PodSecurityConfiguration",
                "defaults": {"enforce": "restricted", "enforce-version": "latest"},
                "exemptions": {"namespaces": ["kube-system"]},
            },
        }
    ],
}


#: Number of a cluster's second node, above that of its first one.
_WORKER = 10


class Cluster:
    """etcd, API server, controller manager and scheduler beside one node, all in the network namespace of that node.

    `worker` is a second node, which `clusters.second_node` starts.
    """

    def __init__(self, name: str, number: int, programs: Path) -> None:
        self.name = name
        self.programs = programs
        self.node = NodeRuntime(name, number, programs)
        self.worker = NodeRuntime(f"{name}-worker", number + _WORKER, programs)
        self.address, self.namespace = self.node.address, self.node.namespace
        self.server = f"https://{self.address}:6443"
        self.state = folders.STATE / name
        self.run = folders.RUN / name

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start etcd, the API server and containerd, unless they run, without waiting."""
        for folder in (self.state, self.run):
            folder.mkdir(parents=True, exist_ok=True)
        # The API server starts in the network of the node.
        network.join(self.namespace, self.address)
        self._certificates()
        self._api_server()
        self.node.start_containerd()

    def wait(self) -> None:
        """Wait until the API server is ready, start its clients, and wait until the node is ready.

        Raises LabError with the end of a log.
        """
        # Before that nobody has rights, and controllers would give up after 10 s.
        self._until(lambda: self.try_kubectl("get", "--raw", "/readyz"), self.daemon("kube-apiserver"))
        self._controllers()
        self.join(self.node)

    def join(self, node: NodeRuntime) -> None:
        """Start the kubelet of a node and wait until the node is ready. Raises LabError with the end of its log."""
        node.start_kubelet(self)
        ready = ("wait", "--for=condition=Ready", f"node/{node.name}", "--timeout=1s")
        self._until(lambda: self.try_kubectl(*ready), Daemon(f"{node.name}-kubelet"))

    def daemon(self, program: str) -> Daemon:
        """Return a program of the cluster."""
        return Daemon(f"{self.name}-{program}")

    def _until(self, condition: Any, daemon: Daemon) -> None:
        deadline = time.monotonic() + _READY
        while not condition():
            if time.monotonic() > deadline or daemon.pid is None:
                raise LabError(f"{daemon.name} does not come up ({daemon.log}):\n{daemon.log.read_text()[-2000:]}")
            time.sleep(0.3)

    # --- use -------------------------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """Path of an admin's kubeconfig, usable on the network of the nodes."""
        return self.authority.path("admin.conf")

    @property
    def authority(self) -> Authority:
        """The authority that signs the cluster's certificates."""
        return Authority(self.run / "pki")

    def command(self, *arguments: str | Path) -> list[str]:
        """kubectl's command line."""
        kubectl = [self.programs / "kubectl", "--kubeconfig", self.kubeconfig, "--cache-dir", self.run / "kubectl"]
        return [*network.inside(network.LAN), *(str(argument) for argument in [*kubectl, *arguments])]

    def kubectl(self, *arguments: str | Path, stdin: str | None = None, timeout: float = 120) -> str:
        """Run kubectl and return its output. Raises LabError when it fails."""
        return run(*self.command(*arguments), stdin=stdin, timeout=timeout)

    def try_kubectl(self, *arguments: str | Path) -> bool:
        """Whether it succeeds."""
        process = subprocess.run(self.command(*arguments), capture_output=True, timeout=300, check=False)
        return process.returncode == 0

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return an object, or a list of them."""
        response: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return response

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the objects of a list."""
        response: list[dict[str, Any]] = self.get(*arguments)["items"]
        return response

    def apply(self, *manifests: Path | dict[str, Any]) -> None:
        """Server-side, files and folders or objects."""
        for manifest in manifests:
            source = str(manifest) if isinstance(manifest, Path) else "-"
            text = None if isinstance(manifest, Path) else json.dumps(manifest)
            self.kubectl("apply", "--server-side", "--force-conflicts", "-f", source, stdin=text)

    def traces(self) -> list[str]:
        """Return the remains of this cluster on the machine: processes, mounts, cgroups, folders, networks."""
        traces = [f"process {daemon.name}" for daemon in daemons() if daemon.name.startswith(f"{self.name}-")]
        paths = []
        for node in (self.node, self.worker):
            traces += [f"process {pid}" for pid in node.processes()]
            paths += [node.state, node.run, Path("/run/netns", node.namespace), *node.cgroups()]
        mounts = Path("/proc/mounts").read_text().splitlines()
        traces += [line for line in mounts if str(self.state) in line or str(self.run) in line]
        return traces + [str(path) for path in paths if path.exists()]

    # --- parts -----------------------------------------------------------------------------------------------------

    def _certificates(self) -> None:
        authority = self.authority
        service = "kubernetes.default.svc"
        names = f"IP:{self.address},IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default"
        names += f",DNS:{service},DNS:{service}.cluster.local"
        authority.sign("apiserver", "/CN=kube-apiserver", names)
        authority.sign("admin", "/O=system:masters/CN=admin")
        authority.sign("front-proxy", "/CN=front-proxy")
        for user in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
            authority.sign(user, f"/CN=system:{user}")
        for user in ("admin", "kube-controller-manager", "kube-scheduler", "kube-proxy"):
            authority.kubeconfig(user, self.server)
        (self.run / "admission.json").write_text(json.dumps(_ADMISSION))

    def _start(self, program: str, *arguments: str) -> None:
        self.daemon(program).start(self.programs / program, *arguments, namespace=self.namespace)

    def _api_server(self) -> None:
        pki = self.authority.path
        client = "http://127.0.0.1:2379"
        self._start(
            "etcd",
            *(f"--data-dir={self.state / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            "--listen-peer-urls=http://127.0.0.1:0",
        )
        self._start(
            "kube-apiserver",
            *(f"--etcd-servers={client}", f"--advertise-address={self.address}", "--secure-port=6443"),
            *(f"--tls-cert-file={pki('apiserver.crt')}", f"--tls-private-key-file={pki('apiserver.key')}"),
            f"--client-ca-file={pki('ca.crt')}",
            *(f"--kubelet-client-certificate={pki('admin.crt')}", f"--kubelet-client-key={pki('admin.key')}"),
            "--kubelet-preferred-address-types=InternalIP",
            *(
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
            ),
            f"--admission-control-config-file={self.run / 'admission.json'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            *(f"--service-account-key-file={pki('sa.key')}", f"--service-account-signing-key-file={pki('sa.key')}"),
            f"--service-cluster-ip-range={network.SERVICES}",
            *(f"--requestheader-client-ca-file={pki('ca.crt')}", "--requestheader-allowed-names=front-proxy"),
            *("--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group"),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            *(
                f"--proxy-client-cert-file={pki('front-proxy.crt')}",
                f"--proxy-client-key-file={pki('front-proxy.key')}",
            ),
        )

    def _controllers(self) -> None:
        pki = self.authority.path
        self._start(
            "kube-controller-manager",
            *(
                f"--kubeconfig={pki('kube-controller-manager.conf')}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
            ),
            *("--use-service-account-credentials", f"--service-account-private-key-file={pki('sa.key')}"),
            f"--root-ca-file={pki('ca.crt')}",
            *(f"--cluster-signing-cert-file={pki('ca.crt')}", f"--cluster-signing-key-file={pki('ca.key')}"),
        )
        self._start(
            "kube-scheduler",
            *(f"--kubeconfig={pki('kube-scheduler.conf')}", "--leader-elect=false", "--bind-address=127.0.0.1"),
        )
