"""The source type `Kubernetes`: free resources of a cluster.

For each node that takes pods, and for all of them together: what is allocatable minus what the pods on it request, by
the rules of Kubernetes' scheduler. The agent keeps a copy of its cluster's nodes and pods, reduced to these numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from dsf.api.summary import ScorerSummary
from dsf.errors import HttpError
from dsf.sources.base import Context, Payload
from dsf.sources.cluster import RESOURCES, ClusterState
from dsf.sources.memory import keep, own_cluster, retention, window_of
from dsf.sources.opentelemetry import checked_grid, payload, selectors_of
from dsf.sources.window import WindowFullError

#: Name of the metric.
METRIC: Final = "kubernetes_available"
#: The request, for display.
_CLUSTER: Final = "nodes and pods of this cluster"


def fetch(summary: ScorerSummary, context: Context) -> Payload:
    """Available resources, for the part of the range that this agent observed."""
    selectors = selectors_of(summary.source_query, required=False)
    grid = checked_grid(summary, context.now)
    memory, cluster = own_cluster(context.memory, "Kubernetes")
    window = window_of(summary, memory)
    now = float(grid.end)
    with context.asking(summary.source_query, _CLUSTER) as question:
        try:
            state = cluster.state(context.deadline)
            window.forget(lambda _: now - retention(summary))
            keep(
                window,
                {
                    tuple(labels.items()): (labels, now, value)
                    for labels, value in available(state)
                    if not selectors or any(selector.matches(labels) for selector in selectors)
                },
                now,
                memory,
                summary,
            )
        except HttpError:
            window.end_all(now)
            raise
        except WindowFullError as error:
            raise HttpError("too_large", str(error)) from None
        fetched = payload(window, selectors, grid, context)
        question.answered(fetched.received, fetched.inside, fetched.series)
    return fetched


def available(state: ClusterState) -> Iterator[tuple[dict[str, str], float]]:
    """Labels and value of each series: for the cluster without a label `node`, then for each node.

    A cordoned node takes no pods, so neither it nor its pods count. A resource that a node does not have is 0.
    """
    left = {
        node.name: {resource: node.allocatable.get(resource, Decimal(0)) for resource in RESOURCES}
        for node in state.nodes
        if node.schedulable
    }
    for pod in state.pods:
        amounts = left.get(pod.node)
        if amounts is not None:
            for resource, value in pod.requests.items():
                amounts[resource] -= value
    for resource in RESOURCES:
        yield _labels(resource), float(sum(amounts[resource] for amounts in left.values()))
    for name in sorted(left):
        for resource in RESOURCES:
            yield _labels(resource) | {"node": name}, float(left[name][resource])


def _labels(resource: str) -> dict[str, str]:
    return {"__name__": METRIC, "resource": resource}
