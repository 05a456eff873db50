"""The fleet of `bench.fleet` on a real API server: `--kube`.

ManagedClusters, DynamicScorers, ManifestWorks, Secrets and AddOnPlacementScores are objects of a kube-apiserver with an
etcd of its own. A thread reports for each ManifestWork what OCM's work agents would report.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from pathlib import Path

import psutil

from bench.fleetworld import FleetFigures, World
from bench.hub import SCORERS, configuration, scorer
from bench.kube import count_writes
from dsf.api.types import MANIFESTWORK_NAME
from dsf.errors import BackendError
from dsf.kube.resources import DYNAMIC_SCORERS, DYNAMIC_SCORING_CONFIGS, MANIFEST_WORKS, Resource
from tests.support.controlplane import ControlPlane
from tests.support.manifests import applied

_NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
_NAMESPACE = "open-cluster-management"
#: Processes that do not belong to the hub.
SERVERS = ("etcd", "kube-apiserver")
_REPORT_EACH = 2.0


class KubeWorld(World):
    """A World with an API server in place of the folder."""

    def __init__(self, folder: Path, api: str, clusters: int, workers: int, redis_server: Path | None = None) -> None:
        super().__init__(folder, api, clusters, workers, redis_server)
        self._plane = ControlPlane()
        self._scoring_api = api
        self._reporting = threading.Event()
        #: Write requests during `watch`, by resource.
        self.writes: Counter[str] = Counter()

    def __exit__(self, *reason: object) -> None:
        self._reporting.set()
        try:
            super().__exit__(*reason)
        finally:
            self._plane.stop()

    def _prepare(self) -> None:
        self._plane.start()
        for child in psutil.Process().children(recursive=True):
            if (name := child.name()) in SERVERS:
                self.processes.adopt(name, child.pid)
        session = self._plane.session()
        session.create(_NAMESPACES.path(), {"metadata": {"name": _NAMESPACE}})
        self._plane.clusters(self.clusters)
        session.create(DYNAMIC_SCORING_CONFIGS.path(_NAMESPACE), configuration())
        for number in range(SCORERS):
            session.create(DYNAMIC_SCORERS.path(_NAMESPACE), scorer(f"scorer-{number}", self._scoring_api))
        threading.Thread(target=self._report, daemon=True).start()

    def _report(self) -> None:
        """Report each ManifestWork as applied, until all objects exist."""
        session = self._plane.session()
        query = {"fieldSelector": f"metadata.name={MANIFESTWORK_NAME}"}
        reported: dict[str, int] = {}
        while not self._reporting.wait(_REPORT_EACH):
            for work in session.request("GET", MANIFEST_WORKS.path(), query=query)["items"]:
                cluster, generation = work["metadata"]["namespace"], work["metadata"]["generation"]
                if reported.get(cluster) == generation:
                    continue
                # The object may have changed meanwhile; the next round reads it again.
                with contextlib.suppress(BackendError):
                    path = MANIFEST_WORKS.path(cluster, MANIFESTWORK_NAME, "status")
                    session.merge(path, {"status": {"conditions": [applied(generation)]}})
                    reported[cluster] = generation

    def _backend(self) -> dict[str, object]:
        return {"backend": "kube", "kubeconfig": self._plane.kubeconfig, "namespace": _NAMESPACE}

    def bring_up(self) -> None:
        """See World."""
        super().bring_up()
        self._reporting.set()

    def watch(self, seconds: float) -> FleetFigures:
        """See World."""
        writes_before = count_writes(self._plane)
        fleet_figures = super().watch(seconds)
        self.writes = count_writes(self._plane) - writes_before
        return fleet_figures
