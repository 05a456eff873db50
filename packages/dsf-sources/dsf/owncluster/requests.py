"""Resource requests of a pod, by the rules of Kubernetes' scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from dsf.api.quantity import parse_quantity

_Amounts = dict[str, Decimal]


def compute_pod_requests(pod: Mapping[str, Any], resources: Iterable[str]) -> _Amounts:
    """Return the pod's requests of these resources; those without a request are left out.

    Containers run together, so their requests add up. Init containers run one after the other before, so the largest
    counts; one with `restartPolicy: Always` (a sidecar) runs alongside all later ones. The pod requests the larger of
    both phases, or its pod-level requests, and the overhead of its runtime class.
    """
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    infeasible = any(
        condition.get("type") == "PodResizePending" and condition.get("reason") == "Infeasible"
        for condition in status.get("conditions") or ()
    )
    running: _Amounts = {}
    statuses = _index_by_name(status.get("containerStatuses"))
    for container in spec.get("containers") or ():
        _add(running, _compute_container_requests(container, statuses, infeasible=infeasible))
    starting: _Amounts = {}
    sidecars: _Amounts = {}
    statuses = _index_by_name(status.get("initContainerStatuses"))
    for container in spec.get("initContainers") or ():
        amounts = _compute_container_requests(container, statuses, infeasible=infeasible)
        if container.get("restartPolicy") == "Always":
            _add(running, amounts)
            _add(sidecars, amounts)
            amounts = sidecars
        else:
            _add(amounts, sidecars)
        _raise(starting, amounts)
    _raise(running, starting)
    running |= _parse_amounts((spec.get("resources") or {}).get("requests"))
    _add(running, _parse_amounts(spec.get("overhead")))
    return {resource: running[resource] for resource in resources if running.get(resource)}


def _compute_container_requests(
    container: Mapping[str, Any], statuses: Mapping[str, Mapping[str, Any]], *, infeasible: bool
) -> _Amounts:
    """Return the requests of a container. During an in-place resize, the larger of desired and allocated counts,
    unless the node reported the resize as infeasible."""
    requested = _parse_amounts((container.get("resources") or {}).get("requests"))
    status = statuses.get(container.get("name", ""), {})
    actual = _parse_amounts((status.get("resources") or {}).get("requests"))
    allocated = _parse_amounts(status.get("allocatedResources"))
    if not actual and not allocated:
        return requested
    amounts: _Amounts = {} if infeasible else dict(requested)
    _raise(amounts, actual)
    _raise(amounts, allocated)
    return amounts


def _index_by_name(statuses: Iterable[Mapping[str, Any]] | None) -> dict[str, Mapping[str, Any]]:
    return {status["name"]: status for status in statuses or ()}


def _parse_amounts(requests: Mapping[str, object] | None) -> _Amounts:
    return {resource: parse_quantity(value) for resource, value in (requests or {}).items()}


def _add(total: _Amounts, added: Mapping[str, Decimal]) -> None:
    for resource, value in added.items():
        total[resource] = total.get(resource, Decimal(0)) + value


def _raise(total: _Amounts, lower_bounds: Mapping[str, Decimal]) -> None:
    for resource, value in lower_bounds.items():
        total[resource] = max(total.get(resource, value), value)
