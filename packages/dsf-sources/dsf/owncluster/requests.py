"""Computes the resource requests of a pod, by the rules of Kubernetes' scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from dsf.api.quantity import parse_quantity

_Amounts = dict[str, Decimal]


def compute_pod_requests(pod: Mapping[str, Any], resources: Iterable[str]) -> _Amounts:
    """Return the pod's requests of these resources, without resources that the pod does not request.

    Containers run together, so their requests add up. Init containers run before them one after another, so the largest
    request counts. An init container with `restartPolicy: Always` (a sidecar) runs alongside all later containers. The
    pod requests the larger amounts of both phases, or its pod-level requests, and the overhead of its runtime class.
    """
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    is_infeasible = any(
        condition.get("type") == "PodResizePending" and condition.get("reason") == "Infeasible"
        for condition in status.get("conditions") or ()
    )
    running_amounts: _Amounts = {}
    statuses = _index_by_name(status.get("containerStatuses"))
    for container in spec.get("containers") or ():
        _add(running_amounts, _compute_container_requests(container, statuses, infeasible=is_infeasible))
    starting_amounts: _Amounts = {}
    sidecar_amounts: _Amounts = {}
    statuses = _index_by_name(status.get("initContainerStatuses"))
    for container in spec.get("initContainers") or ():
        amounts = _compute_container_requests(container, statuses, infeasible=is_infeasible)
        if container.get("restartPolicy") == "Always":
            _add(running_amounts, amounts)
            _add(sidecar_amounts, amounts)
            amounts = sidecar_amounts
        else:
            _add(amounts, sidecar_amounts)
        _raise_to(starting_amounts, amounts)
    _raise_to(running_amounts, starting_amounts)
    running_amounts |= _parse_amounts((spec.get("resources") or {}).get("requests"))
    _add(running_amounts, _parse_amounts(spec.get("overhead")))
    return {resource: running_amounts[resource] for resource in resources if running_amounts.get(resource)}


def _compute_container_requests(
    container: Mapping[str, Any], statuses: Mapping[str, Mapping[str, Any]], *, infeasible: bool
) -> _Amounts:
    """Return the requests of a container.

    During an in-place resize, the larger of desired and allocated amounts count, unless the node reported the resize as
    infeasible.
    """
    requested_amounts = _parse_amounts((container.get("resources") or {}).get("requests"))
    status = statuses.get(container.get("name", ""), {})
    actual_amounts = _parse_amounts((status.get("resources") or {}).get("requests"))
    allocated_amounts = _parse_amounts(status.get("allocatedResources"))
    if not actual_amounts and not allocated_amounts:
        return requested_amounts
    amounts: _Amounts = {} if infeasible else dict(requested_amounts)
    _raise_to(amounts, actual_amounts)
    _raise_to(amounts, allocated_amounts)
    return amounts


def _index_by_name(statuses: Iterable[Mapping[str, Any]] | None) -> dict[str, Mapping[str, Any]]:
    return {status["name"]: status for status in statuses or ()}


def _parse_amounts(requests: Mapping[str, object] | None) -> _Amounts:
    return {resource: parse_quantity(value) for resource, value in (requests or {}).items()}


def _add(total: _Amounts, amounts: Mapping[str, Decimal]) -> None:
    for resource, value in amounts.items():
        total[resource] = total.get(resource, Decimal(0)) + value


def _raise_to(total: _Amounts, lower_bounds: Mapping[str, Decimal]) -> None:
    """Raise the amounts in `total` that are below `lower_bounds`."""
    for resource, value in lower_bounds.items():
        total[resource] = max(total.get(resource, value), value)
