"""What the results worker needs of the place where AddOnPlacementScores live."""

from __future__ import annotations

from typing import Any, Protocol


class ScoreBackend(Protocol):
    """Where scores are written: a folder or Kubernetes. Methods may be called from any thread.

    They raise BackendError when the place cannot be written now; the writer tries again later.
    """

    def apply_score(self, manifest: dict[str, Any], status: dict[str, Any]) -> None:
        """Make the object exist as `manifest` says and have exactly this status.

        Raises ObjectNotFoundError when its cluster is not there.
        """

    def delete_score(self, namespace: str, name: str) -> None:
        """Remove the object; it is no error when it is not there."""
