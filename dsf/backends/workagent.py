"""Replacement of OCM's work agent for the `dir` backend: delivers the objects of a ManifestWork."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from dsf.api import kubeyaml
from dsf.api.meta import Condition
from dsf.backends.files import read_yaml
from dsf.backends.outfolder import OutFolder
from dsf.backends.protocol import Manifest
from dsf.errors import BackendError
from dsf.keys import is_name


class WorkAgent:
    """Delivers into the cluster's folder. Methods raise BackendError when a file cannot be written."""

    def __init__(self, out: OutFolder) -> None:
        self._out = out

    def deliver(self, work: Manifest) -> Manifest:
        """Deliver the work's objects; returns the work's status."""
        for path, manifest in self._objects(work):
            if self._out.delivered.read(path, read_yaml) != manifest:
                self._out.delivered.write(path, kubeyaml.dump(manifest), manifest)
        metadata = work["metadata"]
        condition = Condition(
            type="Applied",
            status="True",
            reason="AppliedManifestWorkComplete",
            message="Apply manifest work complete",
            last_transition_time=_transition_time(work),
            observed_generation=metadata.get("generation"),
        )
        return {"conditions": [condition.to_manifest()]}

    def withdraw(self, cluster: str) -> None:
        """Remove all delivered objects of a cluster."""
        for path in sorted(self._out.cluster(cluster).glob("*.yaml")):
            if not self._out.is_work(path):
                self._out.delivered.remove(path, up_to=self._out.root)

    def _objects(self, work: Manifest) -> list[tuple[Path, Manifest]]:
        folder = self._out.cluster(work["metadata"]["namespace"])
        objects: list[tuple[Path, Manifest]] = []
        for manifest in work["spec"]["workload"]["manifests"]:
            if manifest["apiVersion"].startswith("rbac."):
                # Reading a folder requires no RBAC.
                continue
            name = manifest["metadata"]["name"]
            if not is_name(name):
                raise BackendError(f"{name!r} cannot be the name of an object")
            objects.append((folder / f"{name}.yaml", manifest))
        return objects


def _transition_time(work: Manifest) -> datetime:
    """Time of the first application: applying it again is no transition."""
    status = work.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for condition in conditions if isinstance(conditions, list) else ():
        try:
            parsed = Condition.model_validate(condition)
        except ValueError:
            # The file was edited.
            continue
        if parsed.type == "Applied":
            return parsed.last_transition_time
    return datetime.now(UTC)
