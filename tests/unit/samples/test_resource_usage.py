"""resource-usage-scorer: the addon's scale, and items from series."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from dsf.api.types import SourceType
from tests.unit.samples.conftest import Load

SAMPLE = "resource-usage-scorer"
ALL = {f"{kind}{scope}Available" for kind in ("cpu", "mem", "gpu", "tpu") for scope in ("Node", "Cluster")}
GIB = 2**30


@pytest.fixture
def client(sample: Load) -> TestClient:
    """Return a client of the sample."""
    return TestClient(sample(MAX_CPU="64").app)


def series(resource: str, *values: object, **labels: str) -> dict[str, Any]:
    return {
        "metric": {"resource": resource, **labels},
        "values": [[1718600000 + 60 * at, str(value)] for at, value in enumerate(values)],
    }


def items(client: TestClient, *data: dict[str, Any]) -> dict[str, float]:
    answer = client.post("/scoring", json={"data": data})
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert all(list(result["metric"]) == ["meta"] for result in results)
    return {result["metric"]["meta"]: result["score"] for result in results}


@pytest.mark.parametrize(
    ("value", "maximum", "expected"),
    [
        (0, 100, -100),
        (-5, 100, -100),
        (50, 100, 0),
        (100, 100, 100),
        (101, 100, 100),
        (99.9, 100, 99),
        (0.1, 100, -99),
        (48, 100, -4),
        (1, 20, -90),
        (512 * GIB, 2**40, 0),
    ],
)
def test_scale_equals_that_of_the_addon(sample: Load, value: float, maximum: float, expected: int) -> None:
    assert sample().normalised(value, maximum) == expected


def test_memory_is_not_always_100(sample: Load) -> None:
    module = sample()
    memory = module.LIMITS["mem"]
    assert module.normalised(2147483648, memory) == -99
    # The addon compares bytes with a maximum that is meant in MiB.
    assert module.normalised(2147483648, 1024 * 1024) == 100


def test_limits_default_to_those_of_the_addon(sample: Load) -> None:
    module = sample()
    assert module.maxima({}) == {"cpu": 100, "mem": 2**40, "gpu": 20, "tpu": 20}
    assert module.maxima({"MAX_GPU": "8", "MAX_MEMORY": " 1e9 "})["mem"] == 1e9
    for wrong in ("0", "-1", "many", "inf", "nan"):
        with pytest.raises(ValueError, match="MAX_TPU"):
            module.maxima({"MAX_TPU": wrong})


def test_all_items_with_their_older_names(client: TestClient) -> None:
    item_values = items(
        client,
        series("cpu", 99, 48),
        series("cpu", 30, node="n1"),
        series("cpu", 18, node="n2"),
        series("memory", 256 * GIB),
        series("memory", 64 * GIB, node="n1"),
        series("nvidia.com/gpu", 0),
        series("nvidia.com/gpu", 0, node="n1"),
        series("google.com/tpu", 25),
        series("google.com/tpu", 25, node="n1"),
        series("pods", 110),
    )
    assert item_values.keys() == ALL | {"cpuAvailable", "memAvailable"}
    # MAX_CPU is 64 here; the newest value is used.
    assert (item_values["cpuNodeAvailable"], item_values["cpuClusterAvailable"]) == (-6, 50)
    assert (item_values["memNodeAvailable"], item_values["memClusterAvailable"]) == (-87, -50)
    assert (item_values["gpuNodeAvailable"], item_values["gpuClusterAvailable"]) == (-100, -100)
    assert (item_values["tpuNodeAvailable"], item_values["tpuClusterAvailable"]) == (100, 100)
    assert (item_values["cpuAvailable"], item_values["memAvailable"]) == (50, -50)


def test_without_the_clusters_series_nodes_are_added_up(client: TestClient) -> None:
    item_values = items(client, series("cpu", 16, node="n1"), series("cpu", 32, node="n2"))
    assert item_values == {"cpuNodeAvailable": 0, "cpuClusterAvailable": 50, "cpuAvailable": 50}


def test_cluster_without_nodes_has_no_room(client: TestClient) -> None:
    assert items(client, series("cpu", 0)) == {
        "cpuNodeAvailable": -100,
        "cpuClusterAvailable": -100,
        "cpuAvailable": -100,
    }


def test_gaps_do_not_count_as_zero(client: TestClient) -> None:
    assert items(client, series("cpu", 48, "NaN"))["cpuClusterAvailable"] == 50
    assert items(client, series("cpu", "NaN"), series("memory")) == {}
    assert items(client) == {}


def test_config_names_source_score_and_interval(client: TestClient) -> None:
    config = client.get("/config").json()
    assert config["source"] == {"type": SourceType.Kubernetes}
    assert config["scoring"]["params"] == {"name": "resource-usage-score", "interval": 60}
