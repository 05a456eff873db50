"""Plays OCM's work agent of one managed cluster: applies what ManifestWorks hold, and says so in their status.

Only what these tests need of it: whole objects of the core group, created, replaced and deleted with their work.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

from dsf.errors import ObjectNotFoundError
from dsf.kube.reflector import Reflector
from dsf.kube.resources import CONFIG_MAPS, MANIFEST_WORKS, SECRETS
from dsf.kube.session import Session
from dsf.kube.store import Key, Object

_RESOURCES = {"ConfigMap": CONFIG_MAPS, "Secret": SECRETS}


class WorkAgent:
    """Watches the cluster's namespace on the hub, and writes into the managed cluster's API server."""

    def __init__(self, cluster: str, hub: Session, managed: Session) -> None:
        self._hub = hub
        self._managed = managed
        self._reflector = Reflector(hub, MANIFEST_WORKS, self._on_work, namespace=cluster)

    def start(self) -> None:
        """Begin to watch."""
        self._reflector.start()

    def stop(self) -> None:
        """End the watch."""
        self._reflector.stop()

    def _on_work(self, key: Key, old: Object | None, new: Object | None) -> None:
        if new is None:
            for manifest in _manifests(old or {}):
                with contextlib.suppress(ObjectNotFoundError):
                    self._managed.delete(_path(manifest))
            return
        generation = new["metadata"]["generation"]
        conditions = (new.get("status") or {}).get("conditions") or []
        if any(condition.get("observedGeneration") == generation for condition in conditions):
            # The news of our own status.
            return
        for manifest in _manifests(new):
            self._managed.apply(_path(manifest), manifest, field_manager="work-agent")
        applied = {
            "type": "Applied",
            "status": "True",
            "reason": "AppliedManifestWorkComplete",
            "message": "Apply manifest work complete",
            "observedGeneration": generation,
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        with contextlib.suppress(ObjectNotFoundError):
            self._hub.merge(MANIFEST_WORKS.path(*key, "status"), {"status": {"conditions": [applied]}})


def _manifests(work: Object) -> list[dict[str, Any]]:
    manifests: list[dict[str, Any]] = (work.get("spec") or {}).get("workload", {}).get("manifests") or []
    return manifests


def _path(manifest: dict[str, Any]) -> str:
    metadata = manifest["metadata"]
    return _RESOURCES[manifest["kind"]].path(metadata["namespace"], metadata["name"])
