"""Open Cluster Management: its own placement controller and addon manager beside the hub, its own work agent beside
each managed cluster.

OCM's registration does not run here: its objects are created as it leaves them. tests/e2e/test_registration.py has the
real one.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

from tests.node.lab import folders, network
from tests.node.lab.cluster import Cluster

_GROUPS = ("cluster/v1", "cluster/v1alpha1", "cluster/v1beta1", "cluster/v1beta2", "work/v1", "addon/v1alpha1")
#: The work agent's own books.
_APPLIED = "work/v1/0000_01_work.open-cluster-management.io_appliedmanifestworks.crd.yaml"
_COMMON = ("--namespace=default", "--disable-leader-election")


def init(hub: Cluster, crds: Path) -> None:
    """Make a cluster a hub."""
    hub.apply(*(crds / group for group in _GROUPS))
    hub.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
    hub.apply(folders.HERE / "manifests" / "ocm.yaml")
    kubeconfig = f"--kubeconfig={hub.kubeconfig}"
    for program, command, port in (("placement", "controller", 9101), ("addon", "manager", 9102)):
        hub.daemon(program).start(
            *(hub.programs / program, command, kubeconfig, *_COMMON, f"--listen=127.0.0.1:{port}"),
            namespace=hub.namespace,
        )


def join(managed: Cluster, hub: Cluster, crds: Path) -> None:
    """Start the work agent of a managed cluster, which requests to join."""
    managed.apply(crds / _APPLIED)
    managed.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
    managed.daemon("work").start(
        *(managed.programs / "work", "agent", f"--spoke-cluster-name={managed.name}"),
        f"--kubeconfig={managed.kubeconfig}",
        *("--workload-source-driver=kube", f"--workload-source-config={hub.kubeconfig}", *_COMMON),
        *("--listen=127.0.0.1:9103", "--status-sync-interval=1s"),
        namespace=managed.namespace,
        environment={"POD_NAMESPACE": "default"},
    )
    managed.daemon("registration").start(
        *(sys.executable, "-m", "tests.node.lab.registration", managed.name),
        namespace=network.LAN,
        environment={"PYTHONPATH": str(folders.ROOT)},
    )


def accept(hub: Cluster, *names: str) -> None:
    """Accept clusters: create their namespaces, and ManagedClusters that have joined and are available."""
    for name in names:
        hub.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}, _managed_cluster(name))
        reasons = {
            "HubAcceptedManagedCluster": "HubClusterAdminAccepted",
            "ManagedClusterJoined": "ManagedClusterJoined",
            "ManagedClusterConditionAvailable": "ManagedClusterAvailable",
        }
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [
            {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now}
            for kind, reason in reasons.items()
        ]
        patch = json.dumps({"status": {"conditions": conditions}})
        hub.kubectl("patch", "managedcluster", name, "--subresource=status", "--type=merge", "--patch", patch)


def _managed_cluster(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "cluster.open-cluster-management.io/v1",
        "kind": "ManagedCluster",
        "metadata": {"name": name, "labels": {"cluster.open-cluster-management.io/clusterset": "default"}},
        "spec": {"hubAcceptsClient": True},
    }
