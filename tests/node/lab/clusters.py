"""All clusters of a run: creates, finds and removes them, also after a crash."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.node.lab import engine, folders, host, images, network
from tests.node.lab.certificates import merged
from tests.node.lab.cluster import Cluster
from tests.node.lab.command import CannotRunError, LabError, say
from tests.node.lab.daemon import daemons
from tests.node.lab.noderuntime import PAUSE, NodeRuntime

NAMES = ("hub", "cluster1", "cluster2")
COMPOSE = "dsf-compose"
PROGRAMS = (
    *("etcd", "kube-apiserver", "kubectl", "kube-controller-manager", "placement", "addon", "work"),
    *("kubelet", "kube-proxy", "kube-scheduler", "containerd", "containerd-shim-runc-v2", "ctr", "coredns", "helm"),
)
#: The cluster where pods run as users that no image knows, as on OpenShift.
OTHER_USERS = "cluster2"
#: Volumes that a claim on the hub may bind.
_VOLUMES = 5


@functools.cache
def programs() -> Path:
    """Return the folder with all programs. Missing ones are built, with a message. Raises CannotRunError."""
    return _controlplane(*PROGRAMS)


@functools.cache
def crds() -> Path:
    """Return the folder with OCM's CRD files."""
    return _controlplane("crds")


def _controlplane(*names: str) -> Path:
    script = [sys.executable, str(folders.ROOT / "scripts" / "controlplane")]
    build = subprocess.run([*script, "--no-build", *names], capture_output=True, text=True, check=False)
    if build.returncode:
        build = subprocess.run([*script, *names], stdout=subprocess.PIPE, text=True, check=False)
    if build.returncode:
        raise CannotRunError("scripts/controlplane did not find or build what a node needs; see above")
    return Path(build.stdout.strip())


def cluster(name: str) -> Cluster:
    """Return the cluster of this name from NAMES, whether it runs or not."""
    if name not in NAMES:
        raise LabError(f"no cluster {name}; there are {', '.join(NAMES)}")
    return Cluster(name, NAMES.index(name), programs())


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Allow one run on a machine at a time, because names of networks and addresses are fixed. Raises LabError."""
    folders.make()
    with (folders.CACHE / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError("another `make node` runs on this machine; wait for its end") from None
        yield


def prepare() -> None:
    """Fetch everything that needs the machine's network: packages, programs, base images. Removes leftovers of an
    earlier run.
    """
    host.prepare()
    folders.make()
    if not folders.KEPT.exists():
        down()
        folders.make()
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(programs)
        engine.start()
        images.make_bases(building.result)


def up(*names: str) -> list[Cluster]:
    """Start clusters in parallel, with DNS and volumes, and wait until they are ready. Call `prepare` before."""
    new_clusters = [cluster(name) for name in names or NAMES]
    say(f"starting {', '.join(c.name for c in new_clusters)}")
    for new_cluster in new_clusters:
        new_cluster.start()
    with ThreadPoolExecutor(len(new_clusters)) as pool:
        list(pool.map(_furnish, new_clusters))
    write_kubeconfig()
    return new_clusters


def write_kubeconfig() -> Path:
    """Write one kubeconfig for all running clusters, with kind's names of contexts."""
    path = folders.RUN / "kubeconfig"
    running = [candidate for candidate in map(cluster, NAMES) if candidate.daemon("kube-apiserver").pid is not None]
    config = merged(
        {
            f"kind-{running_cluster.name}": (running_cluster.authority, running_cluster.server)
            for running_cluster in running
        }
    )
    path.write_text(json.dumps(config))
    return path


def down(*names: str) -> None:
    """Remove clusters, all by default. Processes are ended by id; images and programs stay. Missing clusters are
    skipped.
    """
    for name in names or NAMES:
        remains = Cluster(name, NAMES.index(name), Path("/nonexistent"))
        with contextlib.suppress(CannotRunError):
            remains = cluster(name) if (folders.RUN / name).exists() else remains
        for program in ("registration", "work", "addon", "placement", "kubelet", "kube-proxy", "kube-scheduler"):
            remains.daemon(program).stop(timeout=2)
        for node in (remains.worker, remains.node):
            node.remove()
        for program in ("kube-controller-manager", "kube-apiserver", "etcd"):
            remains.daemon(program).stop(timeout=2)
        shutil.rmtree(remains.state, ignore_errors=True)
        shutil.rmtree(remains.run, ignore_errors=True)
    if names:
        return
    engine.stop()
    for daemon in daemons():
        daemon.stop(timeout=5)
    for namespace in (network.LAN, COMPOSE):
        network.remove(namespace)
    shutil.rmtree(folders.STATE, ignore_errors=True)
    shutil.rmtree(folders.RUN, ignore_errors=True)


@contextlib.contextmanager
def second_node(host_cluster: Cluster, *image_names: str) -> Iterator[NodeRuntime]:
    """Give a cluster a second node, with these images and cordoned, while the context is open."""
    node = host_cluster.worker
    node.start_containerd()
    images.load(node, PAUSE, *image_names)
    network.route(host_cluster.namespace, node.pods, node.address)
    network.route(node.namespace, host_cluster.node.pods, host_cluster.address)
    try:
        host_cluster.join(node)
        host_cluster.kubectl("cordon", node.name)
        yield node
    finally:
        host_cluster.kubectl("delete", "node", node.name, "--ignore-not-found")
        node.remove()


def _furnish(new_cluster: Cluster) -> None:
    images.load(new_cluster.node, *images.pulled(new_cluster.name))
    new_cluster.wait()
    new_cluster.apply(folders.HERE / "manifests" / "coredns.yaml")
    if new_cluster.name == OTHER_USERS:
        new_cluster.apply(folders.HERE / "manifests" / "user-ids.yaml")
    volume = (folders.HERE / "manifests" / "volume.yaml").read_text()
    for number in range(_VOLUMES):
        folder = new_cluster.state / "volumes" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        text = (
            volume.replace("NAME", f"local-{number}").replace("FOLDER", str(folder)).replace("NODE", new_cluster.name)
        )
        new_cluster.kubectl("apply", "--server-side", "-f", "-", stdin=text)
    new_cluster.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s", timeout=150)
