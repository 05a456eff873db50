"""All folders: files that are kept between runs, files of one run, and its sockets and process ids."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: Stand-ins of base images, and charts and manifests of other projects.
HERE = ROOT / "tests" / "node"

_base = os.environ.get("XDG_CACHE_HOME") or ""
#: Kept between runs: the engine's images, and the images that each node's containerd has unpacked.
CACHE = (Path(_base) if os.path.isabs(_base) else Path.home() / ".cache") / "dsf" / "node"
#: Data of one run that must be on a disk; `down` removes it.
STATE = CACHE / "state"
#: Sockets of one run, whose paths must be short, process ids, certificates and logs.
RUN = Path("/run/dsf-node")
LOGS = CACHE / "logs"
#: Marks clusters of `scripts/node up`, which a test run does not remove.
KEPT = RUN / "kept"


def make() -> None:
    """Make the folders of a run."""
    for folder in (CACHE, STATE, RUN, LOGS):
        folder.mkdir(parents=True, exist_ok=True)
