"""resource-usage-scorer: the addon's scale, and what it makes of series."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import requests

from dsf.api.manifest import ParsedDocument, parse_documents
from dsf.api.remoteconfig import parse_remote_config
from dsf.api.scorer import DynamicScorer
from dsf.api.types import SourceType
from dsf.up.stack import http_ready
from tests.support.child import Child
from tests.support.redisserver import free_port
from tests.support.uv import ROOT
from tests.support.wait import wait_for

FOLDER = ROOT / "samples" / "resource-usage-scorer"
ALL = {f"{kind}{scope}Available" for kind in ("cpu", "mem", "gpu", "tpu") for scope in ("Node", "Cluster")}
GIB = 2**30


@pytest.fixture(scope="module")
def module() -> ModuleType:
    """The sample as a module."""
    spec = importlib.util.spec_from_file_location("resource_usage_app", FOLDER / "app.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The sample as a service."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(FOLDER), "--port", str(port), "app:app"]
    child = Child(command, tmp_path_factory.mktemp("scorer") / "log", {"MAX_CPU": "64"}, inherit=False)
    url = f"http://127.0.0.1:{port}"
    wait_for(http_ready(f"{url}/healthz"), 30, child.tail())
    yield url
    child.kill()


def series(resource: str, *values: object, **labels: str) -> dict[str, Any]:
    return {
        "metric": {"resource": resource, **labels},
        "values": [[1718600000 + 60 * at, str(value)] for at, value in enumerate(values)],
    }


def items(url: str, *data: dict[str, Any]) -> dict[str, float]:
    answer = requests.post(f"{url}/scoring", json={"data": data}, timeout=300)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert all(list(one["metric"]) == ["meta"] for one in results)
    return {one["metric"]["meta"]: one["score"] for one in results}


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
def test_the_scale_is_the_addons(module: ModuleType, value: float, maximum: float, expected: int) -> None:
    assert module.normalised(value, maximum) == expected


def test_memory_is_not_always_100(module: ModuleType) -> None:
    memory = module.LIMITS["mem"]
    assert module.normalised(2147483648, memory) == -99
    # The addon's comparison of bytes with a maximum that is meant in MiB.
    assert module.normalised(2147483648, 1024 * 1024) == 100


def test_the_limits_are_the_addons_and_can_be_set(module: ModuleType) -> None:
    assert module.maxima({}) == {"cpu": 100, "mem": 2**40, "gpu": 20, "tpu": 20}
    assert module.maxima({"MAX_GPU": "8", "MAX_MEMORY": " 1e9 "})["mem"] == 1e9
    for wrong in ("0", "-1", "many", "inf", "nan"):
        with pytest.raises(ValueError, match="MAX_TPU"):
            module.maxima({"MAX_TPU": wrong})


def test_all_items_with_their_older_names(url: str) -> None:
    found = items(
        url,
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
    assert found.keys() == ALL | {"cpuAvailable", "memAvailable"}
    # MAX_CPU is 64 here; the newest value counts.
    assert (found["cpuNodeAvailable"], found["cpuClusterAvailable"]) == (-6, 50)
    assert (found["memNodeAvailable"], found["memClusterAvailable"]) == (-87, -50)
    assert (found["gpuNodeAvailable"], found["gpuClusterAvailable"]) == (-100, -100)
    assert (found["tpuNodeAvailable"], found["tpuClusterAvailable"]) == (100, 100)
    assert (found["cpuAvailable"], found["memAvailable"]) == (50, -50)


def test_without_the_clusters_series_nodes_are_added_up(url: str) -> None:
    found = items(url, series("cpu", 16, node="n1"), series("cpu", 32, node="n2"))
    assert found == {"cpuNodeAvailable": 0, "cpuClusterAvailable": 50, "cpuAvailable": 50}


def test_a_cluster_without_nodes_has_no_room(url: str) -> None:
    assert items(url, series("cpu", 0)) == {"cpuNodeAvailable": -100, "cpuClusterAvailable": -100, "cpuAvailable": -100}


def test_gaps_do_not_count_as_nothing(url: str) -> None:
    assert items(url, series("cpu", 48, "NaN"))["cpuClusterAvailable"] == 50
    assert items(url, series("cpu", "NaN"), series("memory")) == {}
    assert items(url) == {}


def test_its_config(url: str) -> None:
    body = requests.get(f"{url}/config", timeout=300).content
    config = parse_remote_config(body)
    assert config.source.type is SourceType.Kubernetes
    assert (config.scoring.params.name, config.scoring.params.interval) == ("resource-usage-score", 60)


def test_it_passes_the_conformance_check(url: str) -> None:
    command = [sys.executable, "-m", "dsf.cli", "scorer", "check", f"{url}/config"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_script_runs(url: str) -> None:
    done = subprocess.run([FOLDER / "test_scorer.sh", url], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert '"memClusterAvailable"' in done.stdout


def test_its_manifest_is_a_good_one() -> None:
    file: Path = FOLDER / "manifests" / "dynamicscorer.yaml"
    (document,) = parse_documents(file.read_text(), file.name)
    assert isinstance(document, ParsedDocument), document
    assert isinstance(document.object, DynamicScorer)
    assert document.object.spec.score_dimension_format == "${meta}"
