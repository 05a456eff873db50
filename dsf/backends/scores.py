"""AddOnPlacementScores as files."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from dsf.api.meta import rfc3339
from dsf.backends.outfolder import OutFolder
from dsf.backends.protocol import Kind, Manifest, ObjectKey
from dsf.errors import ObjectNotFoundError


class DirectoryScores:
    """Writes scores into the out folder; the hub and any number of results workers may do so concurrently."""

    def __init__(self, out: OutFolder) -> None:
        self._out = out

    def apply_score(self, manifest: Manifest, status: Manifest) -> None:
        """See `dsf.backends.protocol.ScoreBackend`."""
        metadata = manifest["metadata"]
        key = ObjectKey(Kind.SCORE, metadata["namespace"], metadata["name"])
        if not self._out.path(ObjectKey(Kind.CLUSTER, "", key.namespace)).exists():
            # As on Kubernetes, where the cluster's namespace would be missing.
            raise ObjectNotFoundError(f"cluster {key.namespace!r} is not there (any more)")
        before = (self._out.read(key) or {}).get("metadata", {})
        own = {
            "uid": before.get("uid") or str(uuid.uuid4()),
            "creationTimestamp": before.get("creationTimestamp") or rfc3339(datetime.now(UTC)),
        }
        self._out.write(key, {**manifest, "metadata": {**metadata, **own}, "status": status})

    def delete_score(self, namespace: str, name: str) -> None:
        """See `dsf.backends.protocol.ScoreBackend`."""
        self._out.delete(ObjectKey(Kind.SCORE, namespace, name))
