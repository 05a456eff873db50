"""Where everything is: what is kept between runs, what one run has on disk, and its sockets and process ids."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: Stand-ins of base images, and charts and manifests of what is not ours.
HERE = ROOT / "tests" / "node"

_base = os.environ.get("XDG_CACHE_HOME") or ""
#: Kept between runs: the engine's images, and what each node's containerd has unpacked of them.
CACHE = (Path(_base) if os.path.isabs(_base) else Path.home() / ".cache") / "dsf" / "node"
#: Data of one run that must be on a disk; `down` removes it.
STATE = CACHE / "state"
#: Sockets of one run, whose paths must be short, process ids, certificates and logs.
RUN = Path("/run/dsf-node")
LOGS = CACHE / "logs"
#: Says that `scripts/node up` has made what runs, so that a test run leaves it.
KEPT = RUN / "kept"


def make() -> None:
    """Make the folders of a run."""
    for folder in (CACHE, STATE, RUN, LOGS):
        folder.mkdir(parents=True, exist_ok=True)
