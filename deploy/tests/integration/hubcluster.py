"""A hub that the chart is installed on, by Helm itself, with `lookup` and all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python

from dsf.kube.resources import Resource
from tests.support import chart
from tests.support.controlplane import ControlPlane
from tests.support.jobs import jobs_complete

_APPS = ("apps", "v1")
_RBAC = ("rbac.authorization.k8s.io", "v1")
_ADDON = ("addon.open-cluster-management.io", "v1alpha1")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
DEPLOYMENTS = Resource(*_APPS, "deployments", "Deployment")
STATEFUL_SETS = Resource(*_APPS, "statefulsets", "StatefulSet")
ROLES = Resource(*_RBAC, "roles", "Role")
ROLE_BINDINGS = Resource(*_RBAC, "rolebindings", "RoleBinding")
CLUSTER_ROLES = Resource(*_RBAC, "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(*_RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
CLUSTER_SETS = Resource(
    "cluster.open-cluster-management.io", "v1beta2", "managedclustersets", "ManagedClusterSet", namespaced=False
)
ADDON_TEMPLATES = Resource(*_ADDON, "addontemplates", "AddOnTemplate", namespaced=False)
ADDON_CONFIGS = Resource(*_ADDON, "addondeploymentconfigs", "AddOnDeploymentConfig")


class HubCluster:
    """Installs, upgrades and uninstalls the chart, as `helm` would."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane

    @contextlib.contextmanager
    def release(
        self, values: chart.Values | None = None, namespace: str = chart.NAMESPACE, folder: Path = chart.CHART
    ) -> Iterator[Release]:
        """The chart, installed with these values on a running API server. `folder` has another version of it."""
        with helm_python.Config(kubeconfig_path=self.plane.kubeconfig, namespace=namespace) as config:
            release = Release(config, self.plane.kubeconfig, namespace)
            release.install(values, folder)
            yield release

    def kubeconfig_of(self, namespace: str, account: str) -> Path:
        """A kubeconfig with a token of a ServiceAccount that is there."""
        session = self.plane.session()
        path = SERVICE_ACCOUNTS.path(namespace, account, "token")
        token = session.create(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        kubeconfig = self.plane.dir / f"kubeconfig-{namespace}-{account}"
        text = self.plane.kubeconfig.read_text()
        kubeconfig.write_text(text.replace("admin-token", token))
        return kubeconfig


class Release:
    """An installed release."""

    def __init__(self, config: helm_python.Config, kubeconfig: Path, namespace: str) -> None:
        self._config = config
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        #: Values of the last installation or upgrade.
        self.values: chart.Values = {}

    def install(self, values: chart.Values | None = None, folder: Path = chart.CHART) -> None:
        """`helm install --create-namespace`."""
        self._config.install(folder, chart.RELEASE, values or {}, namespace=self._namespace, create_namespace=True)
        self.values = values or {}

    def upgrade(self, values: chart.Values | None = None) -> dict[str, Any]:
        """`helm upgrade --reset-values`."""
        self.values = values or {}
        return self._config.upgrade(chart.CHART, chart.RELEASE, values or {}, reset_values=True)

    def uninstall(self) -> None:
        """`helm uninstall`."""
        with jobs_complete(self._kubeconfig, self._namespace):
            self._config.uninstall(chart.RELEASE)
