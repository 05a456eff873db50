"""The Placements of `dsf compare`: from a file with Kubernetes objects, or from the hub."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

import dsf.log
from dsf.cli.session import for_a_person, hub_settings, running_demo
from dsf.errors import BackendError, DsfError, ManifestError
from dsf.http import trust
from dsf.kube.session import Session
from dsf.placements.reader import PlacementReader
from dsf.placements.scheduling import Manifest, Situation
from dsf.settings import Settings

#: The set of a file that says nothing of sets: all clusters.
_EVERYTHING: Final[Manifest] = {
    "metadata": {"name": "global"},
    "spec": {"clusterSelector": {"selectorType": "LabelSelector", "labelSelector": {}}},
}


def read(
    wanted: Collection[str], clusters: Collection[str], resources: Collection[str]
) -> tuple[list[Situation], list[str]]:
    """Return the Placements in files or of the hub that are `wanted`, else those of the hub that prefer one of these
    scores.

    The second result is what could not be read, one sentence each. Raises DsfError.
    """
    files = [name for name in wanted if Path(name).is_file()]
    situations = [situation for name in files for situation in from_file(Path(name), clusters)]
    problems: list[str] = []
    named = [name for name in wanted if name not in files]
    if named or not wanted:
        of_hub, problems = _of_hub(named, resources)
        situations += of_hub
    return situations, problems


def _of_hub(named: Collection[str], resources: Collection[str]) -> tuple[list[Situation], list[str]]:
    settings = for_a_person(hub_settings(Settings.load()))
    is_in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    if not named and (settings.backend == "dir" or running_demo(settings) or not (settings.kubeconfig or is_in_pod)):
        # A hub on a folder has no Placements.
        return [], []
    dsf.log.prepare(settings)
    trust.use_folder(settings.trusted_ca_dir)
    try:
        with closing(Session.load(settings.kubeconfig)) as session:
            return from_hub(PlacementReader(session), resources, named)
    except BackendError as error:
        return [], [f"the hub's Placements cannot be read: {error}"]


def from_file(file: Path, clusters: Collection[str]) -> list[Situation]:
    """The Placements in a file, each with the other objects there.

    Without ManagedClusters it is about `clusters`, without ManagedClusterSets about all of them. Raises ManifestError.
    """
    try:
        documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ManifestError(f"{file}: cannot be read: {' '.join(str(error).split())}") from None
    found: dict[str, list[Manifest]] = {}
    for one in _objects(documents):
        found.setdefault(str(one.get("kind")), []).append(one)
    if not found.get("Placement"):
        raise ManifestError(f"{file}: has no Placement")
    known = found.get("ManagedCluster") or [{"metadata": {"name": name}} for name in clusters]
    sets = found.get("ManagedClusterSet") or [_EVERYTHING]
    return [
        Situation(
            placement=placement,
            decided=frozenset(),
            others={},
            clusters={one["metadata"]["name"]: one for one in known},
            sets={one["metadata"]["name"]: one for one in sets},
            scores={
                (one["metadata"]["namespace"], one["metadata"]["name"]): one
                for one in found.get("AddOnPlacementScore", [])
            },
            now=datetime.now(UTC),
        )
        for placement in found["Placement"]
    ]


def _objects(documents: Iterable[Any]) -> Iterator[Manifest]:
    for document in documents:
        items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else None
        for one in items if isinstance(items, list) else [document]:
            if isinstance(one, dict) and isinstance(one.get("metadata"), dict) and one["metadata"].get("name"):
                yield one


def from_hub(
    reader: PlacementReader, resources: Collection[str], wanted: Collection[str]
) -> tuple[list[Situation], list[str]]:
    """Return the hub's Placements that prefer one of these scores, or those of the names `wanted` (`[NAMESPACE/]NAME`).

    The second result is what could not be read, one sentence each. Raises BackendError when nothing can.
    """
    listed = reader.placements().placements
    problems = []
    if wanted:
        chosen = []
        for name in wanted:
            fitting = [one for one in listed if name in (one.name, f"{one.namespace}/{one.name}")]
            chosen += fitting
            if not fitting:
                problems.append(f"there is no Placement {name!r} (any more); `dsf placement` lists them")
    else:
        chosen = [one for one in listed if any(score.partition("/")[0] in resources for score in one.scores)]
    situations = []
    for one in chosen:
        try:
            situations.append(reader.situation(one.namespace, one.name))
        except DsfError as error:
            # The Placement may have gone since it was listed.
            problems.append(f"Placement {one.namespace}/{one.name}: {error}")
    return situations, problems
