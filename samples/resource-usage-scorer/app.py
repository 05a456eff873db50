"""A scoring API: the free resources of a cluster, as the scores of OCM's resource-usage-collect addon.

The series are those of the source `Kubernetes`: the available amount of a resource (label `resource`), on one node
(label `node`) or, without that label, in the whole cluster. Any other source with such series works as well.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Final

from dsf.scorer import Score, Scorer, Series, Source

#: Prefix of an item's name -> value of the label `resource`.
RESOURCES: Final = {"cpu": "cpu", "mem": "memory", "gpu": "nvidia.com/gpu", "tpu": "google.com/tpu"}
#: Amounts that score 100, in cores, bytes and devices: environment variable and default.
MAXIMA: Final = {"cpu": ("MAX_CPU", 100), "mem": ("MAX_MEMORY", 2**40), "gpu": ("MAX_GPU", 20), "tpu": ("MAX_TPU", 20)}
#: Names of older versions of the addon for the whole cluster.
OLDER_NAMES: Final = {"cpu": "cpuAvailable", "mem": "memAvailable"}


def maxima(environment: Mapping[str, str]) -> dict[str, float]:
    """Return the limits in force. Raises ValueError naming the variable that is not a positive number."""
    maxima_by_kind: dict[str, float] = {}
    for kind, (variable, default) in MAXIMA.items():
        text = environment.get(variable, "").strip()
        try:
            maxima_by_kind[kind] = float(text) if text else float(default)
        except ValueError:
            maxima_by_kind[kind] = math.nan
        if not 0 < maxima_by_kind[kind] < math.inf:
            msg = f"{variable}: {text!r} is not a number above 0"
            raise ValueError(msg)
    return maxima_by_kind


def normalised(value: float, maximum: float, minimum: float = 0.0) -> int:
    """Return -100 up to the minimum, 100 from the maximum on, and a whole number in between, cut towards 0."""
    if value >= maximum:
        return 100
    if value <= minimum:
        return -100
    return math.trunc(200 * (value - minimum) / (maximum - minimum) - 100)


LIMITS: Final = maxima(os.environ)

app = Scorer(
    name="resource-usage-scorer",
    description="CPU, memory, GPUs and TPUs that are not requested yet",
    score_name="resource-usage-score",
    interval=60,
    source=Source(type=os.environ.get("SOURCE_TYPE") or "Kubernetes"),
    env="",
)


@app.score
def usage(series: list[Series]) -> Iterable[Score]:
    """Yield for each resource with series: the freest node, the cluster, and the cluster by its older name."""
    for kind, resource in RESOURCES.items():
        nodes: list[float] = []
        clusters: list[float] = []
        for item in series:
            samples = item.finite()
            if item.labels.get("resource") == resource and not samples.is_empty:
                (nodes if item.labels.get("node") else clusters).append(float(samples.values[-1]))
        if not nodes and not clusters:
            continue
        available = {
            f"{kind}NodeAvailable": max(nodes, default=0.0),
            f"{kind}ClusterAvailable": clusters[0] if clusters else sum(nodes),
        }
        if kind in OLDER_NAMES:
            available[OLDER_NAMES[kind]] = available[f"{kind}ClusterAvailable"]
        for name, value in available.items():
            yield Score(normalised(value, LIMITS[kind]), {"meta": name})
