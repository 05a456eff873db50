"""Requested resources of a pod by the rule of Kubernetes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from dsf.api.quantity import parse_quantity
from dsf.owncluster.capacity import RESOURCES, ClusterState, Pod, reduce_node
from dsf.owncluster.kubernetes import compute_available
from dsf.owncluster.requests import compute_pod_requests


def container(cpu: str = "", restart: str = "", name: str = "c", **amounts: str) -> dict[str, Any]:
    requests = ({"cpu": cpu} if cpu else {}) | amounts
    return {"name": name, "resources": {"requests": requests}} | ({"restartPolicy": restart} if restart else {})


def cpu(spec: dict[str, Any], status: dict[str, Any] | None = None) -> float:
    return float(compute_pod_requests({"spec": spec, "status": status or {}}, ["cpu"]).get("cpu", 0))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100m", "0.1"),
        ("2", "2"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("1Gi", "1073741824"),
        ("0.5Ti", "549755813888"),
        ("1k", "1000"),
        ("2M", "2000000"),
        ("3e3", "3000"),
        ("1E3", "1000"),
        ("1E", "1000000000000000000"),
        ("50u", "0.00005"),
        ("7n", "0.000000007"),
        (4, "4"),
        ("-1", "-1"),
    ],
)
def test_quantities(text: object, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "1 Gi", "one", "1mi", "1GiB", None, "1e", "--1", "1e9999"])
def test_invalid_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, 0),
        ({"containers": [container()]}, 0),
        ({"containers": [container("1"), container("500m")]}, 1.5),
        # The init phase is larger; init containers are not added.
        ({"containers": [container("1")], "initContainers": [container("2"), container("3")]}, 3),
        ({"containers": [container("2"), container("2")], "initContainers": [container("3")]}, 4),
        # A sidecar runs beside the containers ...
        ({"containers": [container("1")], "initContainers": [container("500m", "Always")]}, 1.5),
        # Sidecars also run beside later init containers, but not beside earlier ones.
        ({"containers": [container("1")], "initContainers": [container("1", "Always"), container("3")]}, 4),
        ({"containers": [container("1")], "initContainers": [container("3"), container("1", "Always")]}, 3),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("1", "Always"), container("2", "Always"), container("500m")],
            },
            4,
        ),
        # Overhead is added to the larger phase.
        ({"containers": [container("1")], "initContainers": [container("2")], "overhead": {"cpu": "250m"}}, 2.25),
        # Requests of the whole pod take precedence over those of its containers.
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "3"}}, "overhead": {"cpu": "1"}}, 4),
    ],
)
def test_request_of_a_pod_follows_the_rule_of_kubernetes(spec: dict[str, Any], expected: float) -> None:
    assert cpu(spec) == expected


def test_phases_are_compared_for_each_resource() -> None:
    spec = {
        "containers": [container("2", memory="1Gi")],
        "initContainers": [container("1", memory="4Gi")],
    }
    assert compute_pod_requests({"spec": spec}, RESOURCES) == {"cpu": 2, "memory": 4 * 2**30}


def test_resize_counts_the_larger_request_until_done() -> None:
    spec = {"containers": [container("2")]}
    has = {"name": "c", "resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1500m"}}
    assert cpu(spec, {"containerStatuses": [has]}) == 2
    assert cpu({"containers": [container("1")]}, {"containerStatuses": [has]}) == 1.5
    never = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
    assert cpu({"containers": [container("64")]}, {"containerStatuses": [has], "conditions": never}) == 1.5


def test_available_resources_are_reported_by_node_and_in_total() -> None:
    def node(name: str, cordoned: bool = False, **allocatable: str) -> Any:
        spec = {"unschedulable": True} if cordoned else {}
        return reduce_node({"metadata": {"name": name}, "spec": spec, "status": {"allocatable": allocatable}})

    state = ClusterState(
        [
            node("n2", cpu="8", memory="16Gi"),
            node("n1", cpu="4", memory="8Gi", **{"nvidia.com/gpu": "2"}),
            node("off", True, cpu="99"),
        ],
        [
            Pod("n1", {"cpu": Decimal("1.1"), "nvidia.com/gpu": Decimal(1)}),
            Pod("n1", {"cpu": Decimal("0.2")}),
            Pod("n2", {"memory": Decimal(2**30)}),
            Pod("off", {"cpu": Decimal(1)}),
            Pod("unknown", {"cpu": Decimal(1)}),
        ],
    )
    values = {(labels.get("node"), labels["resource"]): value for labels, value in compute_available(state)}
    assert {labels["__name__"] for labels, _ in compute_available(state)} == {"kubernetes_available"}
    assert values[None, "cpu"] == 10.7
    assert values["n1", "cpu"] == 2.7
    assert values[None, "memory"] == 23 * 2**30
    assert (values["n1", "nvidia.com/gpu"], values["n2", "nvidia.com/gpu"], values[None, "nvidia.com/gpu"]) == (1, 0, 1)
    assert values[None, "google.com/tpu"] == 0
    assert len(values) == 12, "the cordoned node is not there"
    assert [value for _, value in compute_available(ClusterState([], []))] == [0, 0, 0, 0]
