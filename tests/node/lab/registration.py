"""OCM's registration of the add-on, played: `python -m tests.node.lab.registration CLUSTER` beside a managed cluster.

OCM's registration agent asks the hub to sign a client certificate for each add-on with `registration: KubeClient` and
keeps it in a Secret of the agent's namespace, beside a kubeconfig that names its files. This program leaves the same
Secret, with a certificate of the hub's own authority, whenever the add-on and the namespace are there and it is not.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import threading

from dsf.api.types import ADDON_NAME, AGENT_NAMESPACE
from dsf.errors import BackendError, ObjectNotFoundError
from dsf.kube.resources import MANAGED_CLUSTER_ADDONS, SECRETS
from dsf.kube.session import Session
from tests.node.lab import clusters
from tests.node.lab.cluster import Cluster

SECRET = f"{ADDON_NAME}-hub-kubeconfig"
_INTERVAL = 1.0


def secret(hub: Cluster, name: str) -> dict[str, object]:
    """Return the Secret of a managed cluster, with a certificate that the hub's authority signs once."""
    groups = (
        f"system:open-cluster-management:cluster:{name}:addon:{ADDON_NAME}",
        f"system:open-cluster-management:addon:{ADDON_NAME}",
    )
    user = f"system:open-cluster-management:cluster:{name}:addon:{ADDON_NAME}:agent:lab"
    authority = hub.authority
    authority.sign_client(f"addon-{name}", user, groups)
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "default-cluster",
                "cluster": {
                    "server": hub.server,
                    "certificate-authority-data": _encoded(authority.path("ca.crt").read_bytes()),
                },
            }
        ],
        "users": [{"name": "default-auth", "user": {"client-certificate": "tls.crt", "client-key": "tls.key"}}],
        "contexts": [{"name": "default-context", "context": {"cluster": "default-cluster", "user": "default-auth"}}],
        "current-context": "default-context",
    }
    files = {
        "agent-name": b"lab",
        "cluster-name": name.encode(),
        "kubeconfig": json.dumps(kubeconfig).encode(),
        "tls.crt": authority.path(f"addon-{name}.crt").read_bytes(),
        "tls.key": authority.path(f"addon-{name}.key").read_bytes(),
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": AGENT_NAMESPACE},
        "type": "Opaque",
        "data": {key: _encoded(content) for key, content in files.items()},
    }


def register(hub: Session, managed: Session, manifest: dict[str, object], name: str) -> None:
    """Create the Secret while the cluster has the add-on, and delete it afterwards. Raises BackendError."""
    try:
        hub.get(MANAGED_CLUSTER_ADDONS.path(name, ADDON_NAME))
    except ObjectNotFoundError:
        with contextlib.suppress(ObjectNotFoundError):
            managed.delete(SECRETS.path(AGENT_NAMESPACE, SECRET))
        return
    try:
        managed.get(SECRETS.path(AGENT_NAMESPACE, SECRET))
    except ObjectNotFoundError:
        managed.create(SECRETS.path(AGENT_NAMESPACE), manifest)


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def main(name: str) -> None:
    """Register until the process is ended."""
    hub, managed = clusters.cluster("hub"), clusters.cluster(name)
    manifest = secret(hub, name)
    hub_session, managed_session = Session.load(hub.kubeconfig), Session.load(managed.kubeconfig)
    while True:
        try:
            register(hub_session, managed_session, manifest, name)
        except BackendError as error:
            # The add-on creates the namespace, and servers may restart.
            print(error, flush=True)
        threading.Event().wait(_INTERVAL)


if __name__ == "__main__":
    main(sys.argv[1])
