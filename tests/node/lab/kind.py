"""`make node NODE=kind`: the clusters that docs/quickstart.md makes with docker and kind, as its reader has them.

Written from kind's documentation and not run yet: the machine where this was written has no image registry.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.node.lab.cluster import Cluster
from tests.node.lab.command import run

PROGRAMS = ("docker", "kind", "kubectl", "helm", "clusteradm")


def is_selected() -> bool:
    """True if the tests should use kind."""
    return os.environ.get("NODE") == "kind"


def reason_against() -> str:
    """Return the missing programs; empty if there are none."""
    absent_programs = [name for name in PROGRAMS if not shutil.which(name)]
    return f"NODE=kind needs {', '.join(absent_programs)} on PATH: see docs/quickstart.md" if absent_programs else ""


class KindCluster(Cluster):
    """A cluster of kind, used with the kubectl and kubeconfig of the user; kind itself manages its node."""

    def __init__(self, name: str) -> None:
        super().__init__(name, 0, Path("/nonexistent"))

    def command(self, *arguments: str | Path) -> list[str]:
        """kubectl's command line."""
        return ["kubectl", "--context", f"kind-{self.name}", *(str(argument) for argument in arguments)]

    def traces(self) -> list[str]:
        """Its container, if it is there."""
        return [name for name in run("kind", "get", "clusters").split() if name == self.name]
