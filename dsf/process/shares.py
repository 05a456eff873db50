"""Divides a resource of an agent among namespaces: its threads, the slots of its mailbox, or its queue.

A part is reserved for the hub's own namespace. Each other namespace may use at most as many units as are still free, so
that two greedy namespaces leave room for a third. The only namespace on a cluster may use all units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def has_share(namespace: str, used_by_namespace: Mapping[str, int], total: int, namespaces: Iterable[str]) -> bool:
    """True if `namespace` may use one more of `total` units. The hub's own namespace is the empty string.

    `used_by_namespace` maps namespaces to their numbers of used units. `namespaces` are those with scorers on the
    cluster.
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
    # Count the unused part of the hub's reserve as used.
    return used_by_namespace.get(namespace, 0) < free_count - max(0, reserved_count - used_by_namespace.get("", 0))
