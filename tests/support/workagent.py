"""OCM's own work agent of one managed cluster: applies ManifestWorks, and reports that in their status."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import yaml

from tests.support.child import Child
from tests.support.controlplane import ControlPlane, find
from tests.support.controlplane_crds import create_crds
from tests.support.redisserver import free_port

#: CRD of AppliedManifestWork, the agent's record of what it applied, on the managed cluster.
_CRD = "work/v1/0000_01_work.open-cluster-management.io_appliedmanifestworks.crd.yaml"


@contextlib.contextmanager
def work_agent(cluster: str, hub: ControlPlane, managed: ControlPlane) -> Iterator[Child]:
    """Run the agent while the context is open, as admin of both clusters, which may be one.

    Raises ControlPlaneMissingError.
    """
    program = find("work") / "work"
    create_crds(managed.session(), [yaml.safe_load((find("crds") / _CRD).read_text())])
    arguments = [
        *(str(program), "agent", f"--spoke-cluster-name={cluster}", f"--kubeconfig={managed.kubeconfig}"),
        *("--workload-source-driver=kube", f"--workload-source-config={hub.kubeconfig}"),
        *("--namespace=default", "--disable-leader-election", f"--listen=127.0.0.1:{free_port()}"),
        # How often it checks applied objects for the status; 10 s by default.
        "--status-sync-interval=1s",
    ]
    child = Child(arguments, managed.dir / f"work-{cluster}.log", {"POD_NAMESPACE": "default"})
    try:
        yield child
    finally:
        child.kill()
