"""Shares of namespaces in the resources of a cluster: threads of the agent, slots of the mailbox, places in the queue.

A part is reserved for the hub's own namespace. Each other namespace may use at most as much as all namespaces leave
free, so that two greedy namespaces leave room for a third. The only namespace on a cluster may use everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def has_share(namespace: str, used_by_namespace: Mapping[str, int], total: int, namespaces: Iterable[str]) -> bool:
    """True if a namespace may use one more of `total` units. The name of the hub's own namespace is empty here.

    `used_by_namespace` has the units that each namespace uses. `namespaces` have scorers on the cluster.
    """
    free_count = total - sum(used_by_namespace.values())
    if free_count <= 0:
        return False
    namespaces = {*namespaces, namespace}
    if len(namespaces) == 1 or total == 1:
        return True
    if not namespace:
        return used_by_namespace.get("", 0) < total - 1
    reserved_count = max(1, total // 4) if "" in namespaces else 0
    # The part of the reserve that the hub's own scorers do not use is not free for others.
    return used_by_namespace.get(namespace, 0) < free_count - max(0, reserved_count - used_by_namespace.get("", 0))
