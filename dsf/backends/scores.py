"""AddOnPlacementScores as files."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dsf.api import kubeyaml
from dsf.api.meta import rfc3339
from dsf.backends.filecache import FileCache
from dsf.backends.files import read_yaml
from dsf.backends.outfolder import OutFolder
from dsf.backends.protocol import Kind, Manifest, ObjectKey
from dsf.errors import ObjectNotFoundError

# Metadata that an object keeps from its creation.
_OWN: Final = ("uid", "creationTimestamp")


class DirectoryScores:
    """Writes scores into the out folder; the hub and any number of results workers may do so concurrently."""

    def __init__(self, out: OutFolder) -> None:
        self._out = out
        # File -> its `_OWN`: reading a file before each renewal takes as long as writing it.
        self._born = FileCache()

    def apply_score(self, manifest: Manifest, status: Manifest) -> None:
        """See `dsf.backends.protocol.ScoreBackend`."""
        metadata: dict[str, Any] = manifest["metadata"]
        key = ObjectKey(Kind.SCORE, metadata["namespace"], metadata["name"])
        if not self._out.path(ObjectKey(Kind.CLUSTER, "", key.namespace)).exists():
            # As on Kubernetes, where the cluster's namespace would be missing.
            raise ObjectNotFoundError(f"cluster {key.namespace!r} is not there (any more)")
        path = self._out.path(key)
        uid, created = self._born.read(path, _born) or ("", "")
        born = uid or str(uuid.uuid4()), created or rfc3339(datetime.now(UTC))
        own = dict(zip(_OWN, born, strict=True))
        body = {name: value for name, value in manifest.items() if name != "status"}
        self._born.write(path, kubeyaml.dump({**body, "metadata": {**metadata, **own}, "status": status}), born)

    def delete_score(self, namespace: str, name: str) -> None:
        """See `dsf.backends.protocol.ScoreBackend`."""
        self._born.remove(self._out.path(ObjectKey(Kind.SCORE, namespace, name)), up_to=self._out.root)


def _born(path: Path) -> tuple[str, str] | None:
    """The values of this file that stay when it is rewritten."""
    data = read_yaml(path)
    metadata = data.get("metadata") if isinstance(data, dict) else None
    if not isinstance(metadata, dict):
        return None
    uid, created = (str(metadata.get(name) or "") for name in _OWN)
    return uid, created
