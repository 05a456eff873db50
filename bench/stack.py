"""The real stack of processes on a folder of manifests, with the settings of production."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from dsf.settings import Settings
from tests.support.child import Child
from tests.support.stack import Stack

GROUP = "dynamic-scoring.open-cluster-management.io/v1alpha1"
CLUSTER = "c1"
_PROCESSES = ("hub", "beat", "results", "web", "whole", "agent")
#: Settings that are shorter in the tests' stack, and have their production values here.
_SHORTENED = (
    "health_interval",
    "beat_lock_timeout",
    "lost_after",
    "redis_polling_interval",
)


class Production(Stack):
    """Hub, beat, results worker, web service and the agent of one cluster, and a Redis with AOF every second.

    With `single`, one process replaces the first four. No process is forked from one that has loaded its modules: the
    memory of those would count, and the settings of the C library's heaps are read when a process starts.
    """

    child: Callable[..., Child] = staticmethod(Child)

    def __init__(self, folder: Path, *, single: bool = False) -> None:
        values = {name: Settings.model_fields[name].default for name in _SHORTENED} | {"log_level": "WARNING"}
        settings = dict.fromkeys(_PROCESSES, values)
        options = ("--appendfsync", "everysec")
        super().__init__(folder, (CLUSTER,), settings=settings, redis_options=options, single=single)

    def start(self) -> None:
        """Start everything. The cluster is accepted, and there are no scorers."""
        self.write("cluster", "cluster.open-cluster-management.io/v1", "ManagedCluster", CLUSTER, {})
        self.write("config", GROUP, "DynamicScoringConfig", "dynamic-scoring-config", {"masks": []})
        super().start()

    def write(self, file: str, version: str, kind: str, name: str, spec: dict[str, Any]) -> None:
        """Apply a manifest. It is written outside of the folder first, so that it appears there complete."""
        if kind == "ManagedCluster":
            spec = {"hubAcceptsClient": True, **spec}
        manifest = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        draft = self.folder / f"{file}.new"
        draft.write_text(yaml.safe_dump(manifest), encoding="utf-8")
        os.replace(draft, self.manifests / f"{file}.yaml")

    def scorer(self, name: str, spec: dict[str, Any]) -> None:
        """Apply a DynamicScorer."""
        common = {"description": "of a bench", "scoreDimensionFormat": "${pod}"}
        self.write(f"scorer-{name}", GROUP, "DynamicScorer", name, common | spec)
