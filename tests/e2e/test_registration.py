"""OCM's own registration gives the agent the kubeconfig with which it reaches Redis.

The hub and the managed cluster are API servers without nodes, so a port-forward that is allowed ends at the pod, which
no node runs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsf.api.types import ADDON_NAME, AGENT_NAMESPACE
from dsf.errors import BackendError
from dsf.kube.resources import CONFIG_MAPS, PODS, SECRETS
from dsf.kube.session import Session
from tests.support import chart
from tests.support.child import Child
from tests.support.controlplane import ControlPlane, find
from tests.support.controlplane_crds import create_crds
from tests.support.controlplane_fixtures import programs_needed
from tests.support.fixtures import SettingsFactory
from tests.support.portforwards import ALLOWED, FORBIDDEN, create_pod, find_refusal
from tests.support.redisserver import free_port
from tests.support.tlsca import TestCa
from tests.support.wait import wait_for

_CLUSTER = "edge"
_REDIS = "dynamic-scoring-redis-0"
_HUB = "open-cluster-management-hub"
_AGENT = "open-cluster-management-agent"
_SECRET = f"{ADDON_NAME}-hub-kubeconfig"
#: The kind in which a managed cluster describes itself.
_CLAIMS = "cluster/v1alpha1/0000_02_clusters.open-cluster-management.io_clusterclaims.crd.yaml"
#: Kinds of the chart's objects that give agents access to Redis and register the add-on.
_KINDS = (
    *("ClusterManagementAddOn", "AddOnTemplate", "AddOnDeploymentConfig", "Placement", "ManagedClusterSetBinding"),
    *("Role", "RoleBinding"),
)


class _Registered:
    """A hub with the chart's add-on, and a managed cluster that OCM's registration agent has joined to it."""

    def __init__(self, folder: Path) -> None:
        """Raises ControlPlaneMissingError."""
        self._folder = folder
        self._ca = TestCa(folder / "ca")
        self._programs = find("kube-controller-manager", "placement", "addon", "registration")
        self.hub = ControlPlane(options=(f"--client-ca-file={self._ca.cert}",))
        self.managed = ControlPlane(crds=False)
        self._stack = ExitStack()

    def __enter__(self) -> _Registered:
        with ExitStack() as stack:
            for plane in (self.hub, self.managed):
                stack.enter_context(plane)
            self._install()
            create_crds(self.managed.session(), [yaml.safe_load((find("crds") / _CLAIMS).read_text())])
            for name, command in self._commands().items():
                child = Child(command, self._folder / f"{name}.log", {"POD_NAMESPACE": _AGENT})
                stack.callback(child.kill)
            self._accept()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _install(self) -> None:
        for plane, namespaces in ((self.hub, (chart.NAMESPACE, _HUB)), (self.managed, (_AGENT, AGENT_NAMESPACE))):
            for namespace in namespaces:
                plane.kubectl("create", "namespace", namespace)
        objects = [manifest for manifest in chart.of_kind(chart.render(), *_KINDS) if _is_for_agents(manifest)]
        self.hub.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def _commands(self) -> dict[str, list[str]]:
        hub = f"--kubeconfig={self.hub.kubeconfig}"
        key = self._ca.cert.with_suffix(".key")
        controller = ("--disable-leader-election", f"--namespace={_HUB}")
        return {
            "signer": [
                *(str(self._programs / "kube-controller-manager"), hub, "--controllers=csrsigning"),
                *(f"--cluster-signing-cert-file={self._ca.cert}", f"--cluster-signing-key-file={key}"),
                *("--leader-elect=false", f"--secure-port={free_port()}", f"--cert-dir={self._folder / 'signer'}"),
            ],
            "hub": [
                *(str(self._programs / "registration"), "controller", hub, *controller),
                f"--listen=127.0.0.1:{free_port()}",
            ],
            "placement": [
                *(str(self._programs / "placement"), "controller", hub, *controller),
                f"--listen=127.0.0.1:{free_port()}",
            ],
            "addon": [
                *(str(self._programs / "addon"), "manager", hub, *controller),
                f"--listen=127.0.0.1:{free_port()}",
            ],
            "agent": [
                *(str(self._programs / "registration"), "agent", f"--kubeconfig={self.managed.kubeconfig}"),
                *(f"--cluster-name={_CLUSTER}", f"--bootstrap-kubeconfig={self.hub.kubeconfig}"),
                *(f"--hub-kubeconfig-dir={self._folder / 'hub-kubeconfig'}", f"--namespace={_AGENT}"),
                *("--disable-leader-election", f"--listen=127.0.0.1:{free_port()}"),
            ],
        }

    def _accept(self) -> None:
        """Accept the cluster as `clusteradm accept` does."""
        wait_for(self._requests, 60, "the cluster's request for a certificate")
        for name in self._requests():
            self.hub.kubectl("certificate", "approve", name)
        accept = '{"spec":{"hubAcceptsClient":true}}'
        self.hub.kubectl("patch", "managedcluster", _CLUSTER, "--type=merge", "--patch", accept)

    def _requests(self) -> list[str]:
        return self.hub.kubectl("get", "csr", "-o", "name").split()

    def kubeconfig(self, folder: Path) -> Path:
        """Mount the Secret of the add-on, as a kubelet does, and return the kubeconfig in it."""
        data = wait_for(self._read_secret, 120, "the Secret with the add-on's kubeconfig")
        for name, content in data.items():
            (folder / name).write_bytes(base64.b64decode(content))
        return folder / "kubeconfig"

    def _read_secret(self) -> dict[str, str]:
        """Return the data of the Secret, which is empty until there is a kubeconfig in it."""
        output = self.managed.kubectl("get", "secret", _SECRET, "-n", AGENT_NAMESPACE, "-o", "json", check=False)
        data: dict[str, str] = json.loads(output)["data"] if output.startswith("{") else {}
        return data if "kubeconfig" in data else {}


def _is_for_agents(manifest: dict[str, Any]) -> bool:
    """Return False for the rights of the hub's own services."""
    is_right = "rbac" in manifest["apiVersion"]
    return not is_right or "portforward" in json.dumps(manifest) or "agents" in manifest["metadata"]["name"]


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Registered]:
    with programs_needed():
        environment = _Registered(tmp_path_factory.mktemp("registration"))
    with environment:
        yield environment


def test_registration_gives_the_agent_a_kubeconfig_for_redis_alone(
    registered: _Registered, settings_factory: SettingsFactory, tmp_path: Path
) -> None:
    kubeconfig = registered.kubeconfig(tmp_path)

    def refusal(pod: str) -> str:
        redis_pod = f"{chart.NAMESPACE}/{pod}:6379"
        return find_refusal(settings_factory(role="agent", redis_pod=redis_pod, hub_kubeconfig=kubeconfig))

    for pod in (_REDIS, "another"):
        create_pod(registered.hub, chart.NAMESPACE, pod)
    wait_for(lambda: ALLOWED in refusal(_REDIS), 60, "the addon manager's RoleBinding")
    assert FORBIDDEN in refusal("another")
    session = Session.load(kubeconfig)
    try:
        for path in (SECRETS.path(chart.NAMESPACE), CONFIG_MAPS.path(_CLUSTER), PODS.path(chart.NAMESPACE, _REDIS)):
            with pytest.raises(BackendError, match="403"):
                session.get(path)
    finally:
        session.close()
