"""A node of a cluster: containerd, kubelet, kube-proxy and the network of its pods."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.node.lab import folders, host, network
from tests.node.lab.certificates import Authority
from tests.node.lab.command import LabError, run, succeeds
from tests.node.lab.daemon import Daemon

if TYPE_CHECKING:
    from tests.node.lab.cluster import Cluster

PAUSE = "registry.k8s.io/pause:3.10"
_CGROUPS = Path("/sys/fs/cgroup")
#: CPU of all pods of a node where there is too little, in shares of a process that is in no group: without it they
#: together would get as much as one of the many processes of the other tests.
_SHARES = 10
#: Where Debian's containernetworking-plugins puts them.
_CNI = "/usr/lib/cni"


class NodeRuntime:
    """All parts of one node except the control plane. Images stay in the cache, `remove` deletes everything else."""

    def __init__(self, name: str, number: int, programs: Path) -> None:
        self.name = name
        self.address = f"{network.PREFIX}.{number + 2}"
        self.namespace = f"dsf-{name}"
        self.pods = f"10.202.{number}.0/24"
        self.programs = programs
        self.state = folders.STATE / name
        self.run = folders.RUN / name
        self.socket = self.run / "containerd.sock"
        self.images = folders.CACHE / "containerd" / name
        self.cgroup = f"dsf-node-{name}"

    # --- life ------------------------------------------------------------------------------------------------------

    def start_containerd(self, *, clean: bool = True) -> None:
        """Start it, unless it runs; `clean` forgets containers of earlier runs."""
        for folder in (self.state, self.run, self.images):
            folder.mkdir(parents=True, exist_ok=True)
        network.join(self.namespace, self.address)
        self._make_cgroups()
        self._write_containerd()
        daemon = self._daemon("containerd")
        if daemon.pid is not None:
            return
        for _ in range(2):
            daemon.start(
                *(self.programs / "containerd", "-c", self.run / "containerd.toml"),
                namespace=self.namespace,
                environment=self._environment,
            )
            self._wait_for_containerd()
            if not clean or not self._sweep():
                return
            daemon.stop()  # The daemon has read its state files already and must read them again.

    def start_kubelet(self, cluster: Cluster) -> None:
        """Start kubelet and kube-proxy, unless they run."""
        pki = cluster.authority.path
        user = f"kubelet-{self.name}"
        names = f"IP:{self.address},DNS:{self.name}"
        cluster.authority.sign(user, f"/O=system:nodes/CN=system:node:{self.name}", names)
        kubeconfig = cluster.authority.kubeconfig(user, cluster.server)
        self._write_kubelet(cluster.authority, user)
        self._daemon("kubelet").start(
            *(self.programs / "kubelet", f"--config={self.run / 'kubelet.json'}"),
            f"--kubeconfig={kubeconfig}",
            *(f"--hostname-override={self.name}", f"--node-ip={self.address}", f"--containerd={self.socket}"),
            *(f"--root-dir={self.state / 'kubelet'}", f"--cert-dir={self.state / 'kubelet' / 'pki'}"),
            namespace=self.namespace,
            environment=self._environment,
        )
        self._daemon("kube-proxy").start(
            *(self.programs / "kube-proxy", f"--kubeconfig={pki('kube-proxy.conf')}"),
            *(f"--hostname-override={self.name}", "--proxy-mode=iptables"),
            *(f"--cluster-cidr={self.pods}", "--conntrack-max-per-core=0"),
            *("--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"),
            namespace=self.namespace,
        )

    @property
    def _environment(self) -> dict[str, str]:
        return {"PATH": f"{self.programs}:{os.environ['PATH']}"}

    def cut_power(self) -> None:
        """Send SIGKILL to everything that runs on the node; its disk stays."""
        for program in ("kubelet", "kube-proxy", "containerd"):
            self._daemon(program).stop(number=signal.SIGKILL)
        for pid in [*self._shims(), *self.processes()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        unmount_below(self.run / "containerd")
        shutil.rmtree(self.run / "containerd", ignore_errors=True)

    def remove(self) -> None:
        """End every container and its shim, by id; remove mounts, cgroups and folders."""
        for program in ("kubelet", "kube-proxy"):
            self._daemon(program).stop(timeout=5)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._daemon("containerd").pid is not None:
            with contextlib.suppress(LabError):  # the next start sweeps what remains
                self._sweep()
        self._daemon("containerd").stop()
        for pid in self._shims():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        unmount_below(self.state, self.run)
        self._remove_cgroups()
        network.remove(self.namespace)
        for folder in (self.state, self.run):
            shutil.rmtree(folder, ignore_errors=True)
        for link in Path("/var/log/containers").glob("*.log"):
            if str(link.readlink() if link.is_symlink() else "").startswith(f"{self.state}/"):
                link.unlink()

    # --- containers ------------------------------------------------------------------------------------------------

    def ctr(self, *arguments: str | Path, stdin: str | None = None) -> str:
        """containerd's own client, in the namespace of Kubernetes."""
        return run(self.programs / "ctr", "-a", self.socket, "-n", "k8s.io", *arguments, stdin=stdin)

    def pid(self, container: str) -> int:
        """Return the machine's id of a container's first process, by the id in a pod's status (`containerd://...`)."""
        container_id = container.removeprefix("containerd://")
        for line in self.ctr("tasks", "ls").splitlines()[1:]:
            name, pid, *_ = line.split()
            if name == container_id:
                return int(pid)
        raise LabError(f"{self.name} runs no container {container_id}")

    def _sweep(self) -> bool:
        """Remove the containers of an earlier run; whether there were any."""
        for task in self.ctr("tasks", "ls", "-q").split():
            succeeds(self.programs / "ctr", "-a", self.socket, "-n", "k8s.io", "tasks", "rm", "-f", task)
        containers = self.ctr("containers", "ls", "-q").split()
        if containers:
            self.ctr("containers", "rm", *containers)
        return bool(containers)

    def _wait_for_containerd(self) -> None:
        daemon = self._daemon("containerd")
        deadline = time.monotonic() + 60
        while not succeeds(self.programs / "ctr", "-a", self.socket, "version"):
            if time.monotonic() > deadline or daemon.pid is None:
                raise LabError(f"containerd does not come up ({daemon.log}):\n{daemon.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def _daemon(self, program: str) -> Daemon:
        return Daemon(f"{self.name}-{program}")

    # --- settings --------------------------------------------------------------------------------------------------

    def _write_containerd(self) -> None:
        runtime = {
            # Where lowering an OOM score is forbidden, runc must not try to.
            "restrict_oom_score_adj": not host.may_lower_oom_scores(),
            # The mounts are removed with the folder.
            "netns_mounts_under_state_dir": True,
            "cni": {"bin_dirs": [_CNI], "conf_dir": str(self.run / "cni")},
            "containerd": {
                "runtimes": {"runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": False}}}
            },
        }
        _write_toml(
            self.run / "containerd.toml",
            {
                "version": 3,
                "root": str(self.images),
                "state": str(self.run / "containerd"),
                "grpc": {"address": str(self.socket)},
                "plugins": {
                    "io.containerd.cri.v1.images": {"pinned_images": {"sandbox": PAUSE}},
                    "io.containerd.cri.v1.runtime": runtime,
                },
            },
        )
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            # Pods reach other nodes with their own node's address, as in kind.
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": str(self.state / "ipam"),
                "ranges": [[{"subnet": self.pods}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        (self.run / "cni").mkdir(exist_ok=True)
        plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
        conflist = {"cniVersion": "1.0.0", "name": f"pods-{self.name}", "plugins": plugins}
        (self.run / "cni" / "10-bridge.conflist").write_text(json.dumps(conflist))

    def _write_kubelet(self, authority: Authority, user: str) -> None:
        pki = authority.path
        (self.run / "resolv.conf").write_text("")
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            # Several kubelets share this machine; each removes cgroups of pods that it does not know.
            "cgroupRoot": f"/{self.cgroup}",
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "clusterDNS": [network.DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.run / "resolv.conf"),
            "failSwapOn": False,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki("ca.crt"))},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki(f"{user}.crt")),
            "tlsPrivateKeyFile": str(pki(f"{user}.key")),
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "podLogsDir": str(self.state / "podlogs"),
            "maxPods": 60,
        }
        (self.run / "kubelet.json").write_text(json.dumps(config))

    # --- cgroups ---------------------------------------------------------------------------------------------------

    def cgroups(self) -> Iterator[Path]:
        """The node's cgroup, in every hierarchy."""
        if host.cgroup_v2():
            yield _CGROUPS / self.cgroup
            return
        for hierarchy in sorted({path.resolve() for path in _CGROUPS.iterdir() if path.is_dir()}):
            yield hierarchy / self.cgroup

    def _make_cgroups(self) -> None:
        for folder in self.cgroups():
            with contextlib.suppress(OSError):  # a hierarchy that is mounted read-only is none that kubelet uses
                folder.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):  # v1 starts a cpuset empty, and nothing can run in it
                setting = folder / name
                if not host.cgroup_v2() and setting.exists() and not setting.read_text().strip():
                    setting.write_text((folder.parent / name).read_text())
            for name, default in (("cpu.weight", 100), ("cpu.shares", 1024)):
                if (setting := folder / name).exists():
                    setting.write_text(str(default * _SHARES))
        if host.cgroup_v2():
            controllers = (_CGROUPS / "cgroup.controllers").read_text().split()
            (_CGROUPS / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))

    def processes(self) -> list[int]:
        """Return the ids of processes in the node's pods."""
        pids: set[int] = set()
        for folder in self.cgroups():
            for file in folder.glob("**/cgroup.procs"):
                with contextlib.suppress(OSError):
                    pids |= {int(pid) for pid in file.read_text().split()}
        return sorted(pids)

    def _shims(self) -> Iterator[int]:
        """The processes that hold this node's containers."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command_line = (folder / "cmdline").read_bytes().split(b"\0")
                if command_line[0].endswith(b"containerd-shim-runc-v2") and str(self.socket).encode() in command_line:
                    yield int(folder.name)

    def _remove_cgroups(self) -> None:
        deadline = time.monotonic() + 10
        for top in self.cgroups():
            while top.exists():
                for folder in [*sorted(top.glob("**/"), reverse=True)]:
                    with contextlib.suppress(OSError):
                        folder.rmdir()
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)


def unmount_below(*tops: Path) -> None:
    """Return every mount below these folders, inner ones first."""
    mount_points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount_point in sorted((p for p in mount_points if any(p.startswith(f"{top}/") for top in tops)), reverse=True):
        succeeds("umount", "--lazy", mount_point)


def _write_toml(path: Path, config: dict[str, Any]) -> None:
    """TOML of tables and scalars; JSON's scalars and lists are TOML's."""
    lines: list[str] = []

    def table(names: list[str], values: dict[str, Any]) -> None:
        if names:
            lines.append("[" + ".".join(json.dumps(name) for name in names) + "]")
        lines.extend(f"{key} = {json.dumps(value)}" for key, value in values.items() if not isinstance(value, dict))
        for key, value in values.items():
            if isinstance(value, dict):
                table([*names, key], value)

    table([], config)
    path.write_text("\n".join(lines) + "\n")
