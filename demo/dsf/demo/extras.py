"""Samples that `dsf demo --with NAME,...` adds: one entry of a table and one manifest each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dsf.demo.manifests import FOLDER
from dsf.demo.services import PROMETHEUS_NAME


@dataclass(frozen=True)
class Extra:
    """One sample. Its manifest is `<sample>.yaml` in `demo/extras`, and in the folder of the demo's manifests."""

    #: Name of its folder below `samples`, and of its program.
    sample: str
    #: Its preferred port.
    port: int
    #: Help text for a mistyped name.
    help: str
    #: Environment of the sample. A demo is short, so ranges and steps are seconds.
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def manifest(self) -> Path:
        """Path of the manifest in the repository."""
        return FOLDER / "extras" / f"{self.sample}.yaml"


#: Name for `--with` -> sample.
EXTRAS: Mapping[str, Extra] = {
    "prediction": Extra(
        "simple-prediction-scorer",
        8002,
        "whether a CPU or the memory is soon busy",
        {
            "SOURCE_HOST": f"http://{PROMETHEUS_NAME}",
            # Fractions of one CPU and of the memory, so that one threshold fits all.
            "SOURCE_QUERY": (
                'sum by (node, device) (label_replace(rate(node_cpu_seconds_total{mode!~"idle|iowait"}[10s]), '
                '"device", "cpu$1", "cpu", "(.*)")); '
                "sum by (node, device) (label_replace(1 - node_memory_MemAvailable_bytes / node_memory_MemTotal_bytes, "
                '"device", "memory", "", ""))'
            ),
            "SOURCE_RANGE": "60",
            "SOURCE_STEP": "1",
            # Short, so that the score follows soon after there are enough samples.
            "SCORE_INTERVAL": "5",
            "MIN_LENGTH": "12",
            "THRESHOLD": "0.8",
        },
    ),
    "resource-usage": Extra(
        "resource-usage-scorer",
        8003,
        "how much CPU and memory is left",
        {
            # Without Kubernetes, idle CPU and free memory stand for unrequested resources.
            "SOURCE_TYPE": "Prometheus",
            "SOURCE_HOST": f"http://{PROMETHEUS_NAME}",
            "SOURCE_QUERY": (
                'sum by (node, resource) (label_replace(rate(node_cpu_seconds_total{mode=~"idle|iowait"}[10s]), '
                '"resource", "cpu", "", "")); '
                "sum by (node, resource) (label_replace(node_memory_MemAvailable_bytes, "
                '"resource", "memory", "", ""))'
            ),
            "SOURCE_RANGE": "10",
            "SOURCE_STEP": "5",
            # Scaled to one machine: 16 cores and 64 GiB are 100.
            "MAX_CPU": "16",
            "MAX_MEMORY": str(64 * 2**30),
        },
    ),
}


def select_extras(names: Collection[str], folder: Path) -> list[Extra]:
    """Return the extras of these names, and those with a manifest in `folder` from an earlier run, in the table's
    order.

    Raises KeyError for an unknown name.
    """
    unknown = [name for name in names if name not in EXTRAS]
    if unknown:
        raise KeyError(unknown[0])
    return [extra for name, extra in EXTRAS.items() if name in names or (folder / extra.manifest.name).is_file()]
