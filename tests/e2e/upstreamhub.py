"""A hub with the original project's software, for tests of the migration.

By default its objects are made as its manager and its agents leave them. If the environment variable DSF_TEST_UPSTREAM
names a folder with its repository in `source` and its programs `manager` and `dynamic-scoring-addon`, these run.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsf.errors import BackendError
from dsf.kube.resources import ADDON_PLACEMENT_SCORES
from dsf.kube.session import Session
from tests.e2e.managedcluster import NAMESPACE, ManagedCluster
from tests.support import upstream
from tests.support.child import Child
from tests.support.controlplane import ControlPlane

_FOLDER = os.environ.get("DSF_TEST_UPSTREAM", "")
#: The folder with the original project's programs; None to make its objects without them.
UPSTREAM = Path(_FOLDER) if _FOLDER else None


class ScoreRecorder:
    """Lists the AddOnPlacementScores of a hub ten times a second. Used as a context manager."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        #: Times by this process' clock, and the `<cluster>/<name>` of all scores with items.
        self.lists: list[tuple[float, frozenset[str]]] = []

    def __enter__(self) -> ScoreRecorder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def longest_gap(self, name: str) -> float:
        """Return the longest time in seconds in which a score had no items; 0 if each list has items."""
        longest, missing_since = 0.0, None
        for at, names in self.lists:
            if name in names:
                missing_since = None
            else:
                missing_since = at if missing_since is None else missing_since
                longest = max(longest, at - missing_since, 0.001)
        return longest

    def _run(self) -> None:
        while not self._end.wait(0.1):
            with contextlib.suppress(BackendError):
                scores = self._session.request("GET", ADDON_PLACEMENT_SCORES.path())["items"]
                names = (
                    f"{score['metadata']['namespace']}/{score['metadata']['name']}"
                    for score in scores
                    if (score.get("status") or {}).get("scores")
                )
                self.lists.append((time.monotonic(), frozenset(names)))


@contextlib.contextmanager
def upstream_programs(hub: ControlPlane, clusters: dict[str, ManagedCluster], folder: Path) -> Iterator[list[Child]]:
    """The original project's manager and one agent per cluster, as admins, while the context is open."""
    assert UPSTREAM is not None
    children = [
        Child(
            [str(UPSTREAM / "manager"), "--metrics-bind-address=0", "--health-probe-bind-address=0"],
            folder / "upstream-manager.log",
            {"KUBECONFIG": str(hub.kubeconfig)},
        )
    ]
    for name, cluster in clusters.items():
        arguments = [
            *(str(UPSTREAM / "dynamic-scoring-addon"), "agent", f"--hub-kubeconfig={hub.kubeconfig}"),
            *(f"--kubeconfig={cluster.plane.kubeconfig}", f"--cluster-name={name}"),
            *(f"--addon-namespace={NAMESPACE}", f"--component-namespace={NAMESPACE}"),
        ]
        children.append(Child(arguments, folder / f"upstream-agent-{name}.log", {"POD_NAMESPACE": NAMESPACE}))
    try:
        yield children
    finally:
        for child in children:
            child.kill()


def make_objects(session: Session, scores: dict[str, tuple[str, ...]], summaries: list[dict[str, Any]]) -> None:
    """Make the ManifestWork of each cluster and its scores, as manager and agents do."""
    for cluster, names in scores.items():
        upstream.create_work(session, cluster, *summaries)
        for name in names:
            upstream.create_score(session, cluster, name, n1=50)
