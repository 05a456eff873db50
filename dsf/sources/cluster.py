"""The view of the agent's own cluster for the sources `Kubernetes` and `Object`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Protocol

from dsf.api.objectsource import ObjectSource
from dsf.sources.requests import quantity

#: Resources. cpu is in cores, memory in bytes, the others are numbers of devices.
RESOURCES: Final = ("cpu", "memory", "nvidia.com/gpu", "google.com/tpu")
Amounts = Mapping[str, Decimal]


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """The used part of a node."""

    name: str
    allocatable: Amounts
    schedulable: bool = True


@dataclass(frozen=True, slots=True)
class Pod:
    """A scheduled pod that has not ended."""

    node: str
    requests: Amounts


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Nodes and pods at one moment."""

    nodes: Sequence[NodeCapacity]
    pods: Sequence[Pod]


class Listing(Protocol):
    """Objects of one kind, as the API server lists them."""

    #: The request, for display.
    url: str

    def pages(self, max_bytes: int, deadline: float) -> Iterator[tuple[Sequence[Mapping[str, Any]], int]]:
        """Objects page by page, and the bytes of each page.

        Raises HttpError: unauthorized without the right, too_large beyond `max_bytes` for all pages, timeout,
        connection_failed, unknown_kind, http_error.
        """


class ClusterView(Protocol):
    """The agent's own cluster."""

    def listing(self, wanted: ObjectSource, deadline: float) -> Listing:
        """The list of a kind's objects. Asks the API server which kinds it has, at most until `deadline`.

        Raises HttpError: unknown_kind, bad_query for a kind that is never read, and as `Listing.pages`.
        """

    def state(self, deadline: float) -> ClusterState:
        """Current nodes and pods. Waits until they are known, at most until `deadline` (time.monotonic()).

        Raises HttpError when they are not available.
        """


def node_of(manifest: Mapping[str, Any]) -> NodeCapacity:
    """A Node object, reduced."""
    allocatable = (manifest.get("status") or {}).get("allocatable") or {}
    return NodeCapacity(
        manifest["metadata"]["name"],
        {resource: quantity(allocatable[resource]) for resource in RESOURCES if resource in allocatable},
        not (manifest.get("spec") or {}).get("unschedulable"),
    )
