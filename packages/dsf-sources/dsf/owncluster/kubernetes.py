"""The source type `Kubernetes`: free resources of a cluster.

Free resources are the allocatable resources minus the requests of the pods, by the rules of Kubernetes' scheduler, of
each schedulable node and of all these nodes together. The agent keeps a copy of its cluster's nodes and pods, reduced
to these numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from dsf.otlp.selector import Selector, parse_query
from dsf.owncluster.background import OwnCluster, get_own_cluster
from dsf.owncluster.capacity import RESOURCES, ClusterState
from dsf.sources.plugin import Options, Plugin, Request, Series

#: Name of the metric.
METRIC: Final = "kubernetes_available"
#: The request, as `dsf explain` shows it.
_CLUSTER: Final = "nodes and pods of this cluster"


def fetch(request: Request[Options]) -> Iterator[Series]:
    """Yield the series of free resources, for the part of the time range that this agent has observed."""
    selectors = parse_query(request.query, required=False)
    with request.history() as history:
        cluster = get_own_cluster(request).cluster
        with request.asking(_CLUSTER):
            state = cluster.read_state(request.deadline)
        history.keep(
            {
                tuple(labels.items()): (labels, history.now, value)
                for labels, value in compute_available(state)
                if not selectors or any(selector.matches(labels) for selector in selectors)
            }
        )
    for selector in selectors or [Selector("")]:
        yield from history.series(selector.matches, request.check)


def compute_available(state: ClusterState) -> Iterator[tuple[dict[str, str], float]]:
    """Yield (labels, value) of each series: first for the cluster, without a label `node`, then for each node.

    Cordoned nodes and their pods are left out. The value is 0 for a resource that a node does not have.
    """
    free_amounts = {
        node.name: {resource: node.allocatable.get(resource, Decimal(0)) for resource in RESOURCES}
        for node in state.nodes
        if node.schedulable
    }
    for pod in state.pods:
        amounts = free_amounts.get(pod.node)
        if amounts is not None:
            for resource, value in pod.requests.items():
                amounts[resource] -= value
    for resource in RESOURCES:
        yield _make_labels(resource), float(sum(amounts[resource] for amounts in free_amounts.values()))
    for name in sorted(free_amounts):
        for resource in RESOURCES:
            yield _make_labels(resource) | {"node": name}, float(free_amounts[name][resource])


def _make_labels(resource: str) -> dict[str, str]:
    return {"__name__": METRIC, "resource": resource}


PLUGIN: Final = Plugin(1, Options, fetch, OwnCluster)
