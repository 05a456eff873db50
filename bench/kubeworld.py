"""The fleet of `bench.fleet` on a real API server, for the option `--kube`.

ManagedClusters, DynamicScorers, ManifestWorks, Secrets and AddOnPlacementScores are objects of a kube-apiserver with
its own etcd. A thread reports each ManifestWork as applied, as OCM's work agents would.
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
#: Names of the API server's processes, which do not belong to the hub.
SERVERS = ("etcd", "kube-apiserver")
#: Seconds between two rounds of reports.
_REPORT_INTERVAL = 2.0


class KubeWorld(World):
    """A World whose objects are in an API server instead of a folder."""

    def __init__(self, folder: Path, api: str, clusters: int, workers: int, redis_server: Path | None = None) -> None:
        super().__init__(folder, api, clusters, workers, redis_server)
        self._plane = ControlPlane()
        self._scoring_api = api
        #: Ends the thread that reports ManifestWorks as applied.
        self._stop_reporting = threading.Event()
        #: Write requests during `watch`, by resource.
        self.writes: Counter[str] = Counter()

    def __exit__(self, *reason: object) -> None:
        self._stop_reporting.set()
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
        threading.Thread(target=self._report_manifest_works, daemon=True).start()

    def _report_manifest_works(self) -> None:
        """Report each generation of each ManifestWork as applied, until `_stop_reporting` is set."""
        session = self._plane.session()
        query = {"fieldSelector": f"metadata.name={MANIFESTWORK_NAME}"}
        reported_generations: dict[str, int] = {}
        while not self._stop_reporting.wait(_REPORT_INTERVAL):
            for work in session.request("GET", MANIFEST_WORKS.path(), query=query)["items"]:
                cluster, generation = work["metadata"]["namespace"], work["metadata"]["generation"]
                if reported_generations.get(cluster) == generation:
                    continue
                # The ManifestWork may have changed since it was read; then the next round reports it.
                with contextlib.suppress(BackendError):
                    path = MANIFEST_WORKS.path(cluster, MANIFESTWORK_NAME, "status")
                    session.merge(path, {"status": {"conditions": [applied(generation)]}})
                    reported_generations[cluster] = generation

    def _backend(self) -> dict[str, object]:
        return {"backend": "kube", "kubeconfig": self._plane.kubeconfig, "namespace": _NAMESPACE}

    def bring_up(self) -> None:
        """Start everything, and stop reporting ManifestWorks once every pair has its object."""
        super().bring_up()
        self._stop_reporting.set()

    def watch(self, seconds: float) -> FleetFigures:
        """Measure the fleet for this many seconds, and count the API server's write requests in `writes`."""
        writes_before = count_writes(self._plane)
        fleet_figures = super().watch(seconds)
        self.writes = count_writes(self._plane) - writes_before
        return fleet_figures
