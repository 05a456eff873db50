"""Reads the Placements of `dsf compare` from files with Kubernetes objects, or from the hub."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

import dsf.log
from dsf.cli.session import add_kubeconfig, find_running_demo, limit_log_level
from dsf.errors import BackendError, DsfError, ManifestError
from dsf.http import trust
from dsf.kube.session import Session
from dsf.placements.reader import PlacementReader
from dsf.placements.scheduling import Manifest, Situation
from dsf.settings import Settings

#: The cluster set of a file without cluster sets, which contains all clusters.
_ALL_CLUSTERS_SET: Final[Manifest] = {
    "metadata": {"name": "global"},
    "spec": {"clusterSelector": {"selectorType": "LabelSelector", "labelSelector": {}}},
}


def read_situations(
    placement_names: Collection[str], clusters: Collection[str], resources: Collection[str]
) -> tuple[list[Situation], list[str]]:
    """Return the Placements with these names, of files or of the hub.

    Without names, returns the Placements of the hub that prefer one of the AddOnPlacementScores `resources`. `clusters`
    are the clusters of files without ManagedClusters. The second result has a sentence for each Placement that could
    not be read. Raises DsfError.
    """
    files = [name for name in placement_names if Path(name).is_file()]
    situations = [situation for name in files for situation in read_situations_from_file(Path(name), clusters)]
    problems: list[str] = []
    hub_names = [name for name in placement_names if name not in files]
    if hub_names or not placement_names:
        hub_situations, problems = _read_from_hub(hub_names, resources)
        situations += hub_situations
    return situations, problems


def _read_from_hub(placement_names: Collection[str], resources: Collection[str]) -> tuple[list[Situation], list[str]]:
    settings = limit_log_level(add_kubeconfig(Settings.load()))
    is_in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    if not placement_names and (
        settings.backend == "dir" or find_running_demo(settings) or not (settings.kubeconfig or is_in_pod)
    ):
        # A hub with the folder backend has no Placements.
        return [], []
    dsf.log.prepare(settings)
    trust.use_folder(settings.trusted_ca_dir)
    try:
        with closing(Session.load(settings.kubeconfig)) as session:
            return read_situations_from_hub(PlacementReader(session), resources, placement_names)
    except BackendError as error:
        return [], [f"the hub's Placements cannot be read: {error}"]


def read_situations_from_file(file: Path, clusters: Collection[str]) -> list[Situation]:
    """Return the Placements in a file, each with the other objects in the file.

    For a file without ManagedClusters, `clusters` are the clusters. Without ManagedClusterSets, all clusters can be
    selected. Raises ManifestError.
    """
    try:
        documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        # A ValueError means that the text is not UTF-8, or that a date or number is beyond Python's bounds.
        raise ManifestError(f"{file}: cannot be read: {' '.join(str(error).split())}") from None
    manifests_by_kind: dict[str, list[Manifest]] = {}
    for manifest in _iterate_objects(documents):
        manifests_by_kind.setdefault(str(manifest.get("kind")), []).append(manifest)
    if not manifests_by_kind.get("Placement"):
        raise ManifestError(f"{file}: has no Placement")
    scores = manifests_by_kind.get("AddOnPlacementScore", [])
    if name := next((score["metadata"]["name"] for score in scores if not score["metadata"].get("namespace")), None):
        raise ManifestError(f"{file}: AddOnPlacementScore {name!r} has no namespace; it is the name of its cluster")
    cluster_manifests = manifests_by_kind.get("ManagedCluster") or [{"metadata": {"name": name}} for name in clusters]
    sets = manifests_by_kind.get("ManagedClusterSet") or [_ALL_CLUSTERS_SET]
    return [
        Situation(
            placement=placement,
            decided=frozenset(),
            other_decision_counts={},
            clusters={cluster["metadata"]["name"]: cluster for cluster in cluster_manifests},
            cluster_sets={cluster_set["metadata"]["name"]: cluster_set for cluster_set in sets},
            scores={(score["metadata"]["namespace"], score["metadata"]["name"]): score for score in scores},
            now=datetime.now(UTC),
        )
        for placement in manifests_by_kind["Placement"]
    ]


def _iterate_objects(documents: Iterable[Any]) -> Iterator[Manifest]:
    """Yield the objects in documents and in lists of kind List. Entries without a name are skipped."""
    for document in documents:
        items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
        for entry in items if isinstance(items, list) else [document]:
            if isinstance(entry, dict) and isinstance(entry.get("metadata"), dict) and entry["metadata"].get("name"):
                yield entry


def read_situations_from_hub(
    reader: PlacementReader, resources: Collection[str], names: Collection[str]
) -> tuple[list[Situation], list[str]]:
    """Return the hub's Placements with these names (`[NAMESPACE/]NAME`).

    Without names, returns the Placements that prefer one of the AddOnPlacementScores `resources`. The second result has
    a sentence for each Placement that could not be read. Raises BackendError if Placements cannot be listed.
    """
    available_placements = reader.list_placements().placements
    problems = []
    if names:
        selected_placements = []
        for name in names:
            matches = [
                candidate
                for candidate in available_placements
                if name in (candidate.name, f"{candidate.namespace}/{candidate.name}")
            ]
            selected_placements += matches
            if not matches:
                problems.append(f"there is no Placement {name!r} (any more); `dsf placement` lists them")
    else:
        selected_placements = [
            candidate
            for candidate in available_placements
            if any(score.partition("/")[0] in resources for score in candidate.scores)
        ]
    situations = []
    for selected in selected_placements:
        try:
            situations.append(reader.read_situation(selected.namespace, selected.name))
        except DsfError as error:
            # The Placement may have been deleted since it was listed.
            problems.append(f"Placement {selected.namespace}/{selected.name}: {error}")
    return situations, problems
