"""Reduces nodes and pods of a cluster to their supplied and requested resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from dsf.api.quantity import parse_quantity
from dsf.owncluster.requests import compute_pod_requests

#: The resources that the source type `Kubernetes` reports: cpu in cores, memory in bytes, the others in devices.
RESOURCES: Final = ("cpu", "memory", "nvidia.com/gpu", "google.com/tpu")
#: Resource -> amount.
Amounts = Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """The name and the resources of a node."""

    name: str
    allocatable: Amounts
    #: False if the node is cordoned.
    schedulable: bool = True


@dataclass(frozen=True, slots=True)
class Pod:
    """The node and the resource requests of a scheduled pod that has not ended."""

    node: str
    requests: Amounts


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Nodes and pods at one moment."""

    nodes: Sequence[NodeCapacity]
    pods: Sequence[Pod]


def reduce_node(manifest: Mapping[str, Any]) -> NodeCapacity:
    """Return the reduced form of a Node object."""
    allocatable = (manifest.get("status") or {}).get("allocatable") or {}
    return NodeCapacity(
        manifest["metadata"]["name"],
        {resource: parse_quantity(allocatable[resource]) for resource in RESOURCES if resource in allocatable},
        not (manifest.get("spec") or {}).get("unschedulable"),
    )


def reduce_pod(manifest: Mapping[str, Any]) -> Pod:
    """Return the reduced form of a Pod object."""
    return Pod((manifest.get("spec") or {}).get("nodeName", ""), compute_pod_requests(manifest, RESOURCES))
