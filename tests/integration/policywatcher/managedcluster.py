"""A managed cluster as the watcher sees it, and watchers that run there with the rights of the manifest."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from dsf.errors import ObjectConflictError, ObjectNotFoundError
from dsf.kube.resources import ACCESS_REVIEWS, Resource
from dsf.kube.session import Session
from dsf.placements.kinds import POLICIES
from tests.integration.policywatcher.kinds import CLAIMS, install
from tests.support.child import Child
from tests.support.controlplane import ControlPlane
from tests.support.wait import wait_for

SAMPLE = Path(__file__).parents[3] / "samples" / "policy-watcher"
MANIFEST = SAMPLE / "manifests" / "deployment.yaml"
CLAIM = "policy-watcher-claim"
NAMESPACE = "dynamic-scoring"
_RBAC = ("rbac.authorization.k8s.io", "v1")
_NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
_KINDS = {
    resource.kind: resource
    for resource in (
        Resource("", "v1", "serviceaccounts", "ServiceAccount"),
        Resource("apps", "v1", "deployments", "Deployment"),
        Resource(*_RBAC, "roles", "Role"),
        Resource(*_RBAC, "rolebindings", "RoleBinding"),
        Resource(*_RBAC, "clusterroles", "ClusterRole", namespaced=False),
        Resource(*_RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    )
}
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:policy-watcher"


class ManagedCluster:
    """A namespace of policies, with the manifest applied for it."""

    def __init__(self, plane: ControlPlane, session: Session, folder: Path, *, kinds: bool = True) -> None:
        """Without `kinds` the API server does not know policies and claims, unless it did before."""
        self.plane = plane
        self.session = session
        self.name = plane.namespace("policies")
        self._folder = folder
        self._runs = 0
        if kinds:
            install(session)
        with contextlib.suppress(ObjectConflictError):
            session.create(_NAMESPACES.path(), {"metadata": {"name": NAMESPACE}})
        self.apply_manifest()
        self.kubeconfig = self._folder / "kubeconfig"
        token = _KINDS["ServiceAccount"].path(NAMESPACE, "policy-watcher", "token")
        self._write_kubeconfig(session.create(token, {"spec": {"expirationSeconds": 3600}})["status"]["token"])
        self.delete_claim()

    def apply_manifest(self) -> None:
        """The manifest as a person applies it."""
        for document in yaml.safe_load_all(MANIFEST.read_text().replace("${CLUSTER_NAME}", self.name)):
            metadata = document["metadata"]
            path = _KINDS[document["kind"]].path(metadata.get("namespace", ""), metadata["name"])
            self.session.apply(path, document, field_manager="person")
        # The API server takes note of rights a moment later.
        for kind in ("RoleBinding", "ClusterRoleBinding"):
            wait_for(lambda kind=kind: self._allows(kind), 20, f"the rights of the {kind}")

    def forbid(self, kind: str) -> None:
        """Remove rights by deleting a binding; `apply_manifest` restores them."""
        self.session.delete(_KINDS[kind].path(self.name, "policy-watcher"))
        wait_for(lambda: not self._allows(kind), 20, f"the rights of the {kind} to go")

    def _allows(self, kind: str) -> bool:
        """Whether the watcher has the rights that a binding of this kind gives."""
        if kind == "RoleBinding":
            return self.may("list", POLICIES, namespace=self.name)
        return self.may("get", CLAIMS, CLAIM)

    def may(self, verb: str, resource: Resource, name: str = "", namespace: str = "") -> bool:
        """Whether the watcher has this right."""
        attributes = {"verb": verb, "group": resource.group, "resource": resource.plural, "name": name}
        body = {"spec": {"user": ACCOUNT, "resourceAttributes": {**attributes, "namespace": namespace}}}
        return bool(self.session.create(ACCESS_REVIEWS.path(), body)["status"]["allowed"])

    def policy(self, name: str, compliant: str | None) -> None:
        """Make or change a policy. `None` means that the compliance is not evaluated."""
        path = POLICIES.path(self.name, name)
        spec = {"disabled": False, "policy-templates": []}
        body = {"apiVersion": POLICIES.api_version, "kind": POLICIES.kind, "metadata": {"name": name}, "spec": spec}
        self.session.apply(path, body, field_manager="test")
        if compliant is not None:
            self.session.merge(f"{path}/status", {"status": {"compliant": compliant}})

    def delete_policy(self, name: str) -> None:
        """Delete a policy immediately."""
        self.session.delete(POLICIES.path(self.name, name))

    def claim(self) -> str | None:
        """Return the claim's value, None without a claim."""
        try:
            return str(self.session.get(CLAIMS.path(name=CLAIM))["spec"]["value"])
        except ObjectNotFoundError:
            return None

    def set_claim(self, value: str) -> None:
        """As a person would."""
        self.session.apply(
            CLAIMS.path(name=CLAIM),
            {
                "apiVersion": CLAIMS.api_version,
                "kind": CLAIMS.kind,
                "metadata": {"name": CLAIM, "labels": {"whose": "a-person"}},
                "spec": {"value": value},
            },
            field_manager="person",
        )

    def delete_claim(self) -> None:
        """Delete the claim if it exists."""
        with contextlib.suppress(ObjectNotFoundError):
            self.session.delete(CLAIMS.path(name=CLAIM))

    def version(self) -> str:
        """Return the claim's resourceVersion: it changes with every write."""
        return str(self.session.get(CLAIMS.path(name=CLAIM))["metadata"]["resourceVersion"])

    def wait_claim(self, value: str, timeout: float = 10.0) -> None:
        """Wait until the claim has this value."""
        wait_for(lambda: self.claim() == value, timeout, f"the claim says {value}")

    @contextlib.contextmanager
    def watcher(self, *, stable: float = 1.0, interval: float = 0.1, **environment: str) -> Iterator[Child]:
        """Run the program until the context ends; then it must end on SIGTERM, with exit code 0."""
        self._runs += 1
        values = {
            "KUBECONFIG": str(self.kubeconfig),
            "PYTHONPATH": str(SAMPLE),
            "PATH": os.environ["PATH"],
            "WATCH_NAMESPACE": self.name,
            "POLL_INTERVAL_SEC": str(interval),
            "STABLE_DURATION_SEC": str(stable),
            **environment,
        }
        log = self._folder / f"watcher-{self._runs}.log"
        child = Child([sys.executable, "-W", "error", "-m", "policywatcher"], log, values, inherit=False)
        try:
            wait_for(lambda: "watching policies" in child.tail(), 20, "the watcher starts")
            yield child
            child.signal(signal.SIGTERM)
            assert child.wait() == 0, child.tail()
            assert "Traceback" not in log.read_text()
        finally:
            child.kill()

    def _write_kubeconfig(self, token: str) -> None:
        config = yaml.safe_load(self.plane.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        self.kubeconfig.write_text(json.dumps(config))
