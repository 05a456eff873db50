"""The share that a namespace has of what all scorers of a cluster use: threads, slots of the mailbox, its queue.

Some of it is reserved for the hub's own namespace, and each other one has at most as much as it leaves free. Two greedy
namespaces thus leave some for a third one. A namespace alone on its cluster has all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def has_share(namespace: str, used_by_namespace: Mapping[str, int], total: int, present: Iterable[str]) -> bool:
    """True if a namespace may use one more of `total`; the hub's own is empty.

    `used_by_namespace` has the number that each namespace uses, `present` the namespaces with scorers on this cluster.
    """
    free = total - sum(used_by_namespace.values())
    if free <= 0:
        return False
    present = {*present, namespace}
    if len(present) == 1 or total == 1:
        return True
    if not namespace:
        return used_by_namespace.get("", 0) < total - 1
    reserved = max(1, total // 4) if "" in present else 0
    # What the hub's own scorers use beyond their reserve is taken from all others.
    return used_by_namespace.get(namespace, 0) < free - max(0, reserved - used_by_namespace.get("", 0))
