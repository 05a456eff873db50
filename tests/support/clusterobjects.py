"""Nodes and pods in a real API server, where no kubelet runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dsf.kube.resources import Resource
from dsf.kube.session import Session

ROOT = Path(__file__).resolve().parents[2]
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
#: Rules that the optional ClusterRole grants to the agent.
RULES: list[dict[str, Any]] = next(
    document["rules"]
    for document in yaml.safe_load_all((ROOT / "deploy" / "sources" / "kubernetes.yaml").read_text())
    if document["kind"] == "ClusterRole"
)


def add_node(session: Session, name: str, *, cordoned: bool = False, **allocatable: str) -> None:
    """Create a node as a kubelet registers it."""
    spec = {"unschedulable": True} if cordoned else {}
    session.create(NODES.path(), {"metadata": {"name": name}, "spec": spec})
    session.merge(NODES.path(name=name, subresource="status"), {"status": {"allocatable": allocatable}})


def add_pod(session: Session, namespace: str, name: str, node: str = "", **spec: Any) -> None:
    """Create a pod, on a node if one is named. `cpu` and `memory` are the requests of its container."""
    requests = {key: spec.pop(key) for key in ("cpu", "memory") if key in spec}
    container = {"name": "main", "image": "none", "resources": {"requests": requests}}
    body = {"containers": [container], "automountServiceAccountToken": False, **spec}
    session.create(
        PODS.path(namespace), {"metadata": {"name": name}, "spec": body | ({"nodeName": node} if node else {})}
    )


def end_pod(session: Session, namespace: str, name: str) -> None:
    """Set the phase of a pod to Succeeded."""
    session.merge(PODS.path(namespace, name, "status"), {"status": {"phase": "Succeeded"}})
