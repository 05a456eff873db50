"""Resident memory of every process at rest. The chart requests a quarter more for each.

    python -m bench.rest [--quick] [--strict] [--json FILE]

The processes start as in the images, not forked from one with loaded modules, and have nothing to score: with
`mode: Distributed`, with `mode: Single`, and the optimiser without an API server.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.common import MEGABYTE, Figure, Measurement, run
from bench.stack import CLUSTER, Production
from tests.support.child import Child
from tests.support.wait import wait_for

#: Process of a stack -> its name in the chart.
_DISTRIBUTED = {
    "hub": "controller",
    "beat": "beat",
    "results": "results",
    "web": "web",
    f"agent {CLUSTER}": "agent",
    "flower": "flower",
}
_SINGLE = {"whole": "hub"}
#: Seconds until memory is read, when threads have started and the first rounds are over.
_SECONDS, _QUICK_SECONDS = 20.0, 8.0
_ADDRESS = "http://127.0.0.1:9"
_KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "none",
    "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
    "clusters": [{"name": "none", "cluster": {"server": _ADDRESS}}],
    "users": [{"name": "none", "user": {}}],
}


class FreshProduction(Production):
    """A stack whose processes load their modules themselves: forked ones would share pages."""

    child = staticmethod(Child)


def measure_processes(seconds: float) -> dict[str, float]:
    """Return the MiB of each process at rest, by its name in the chart."""
    # As in the image, whose modules are compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    memory: dict[str, float] = {}
    for names, is_single in ((_DISTRIBUTED, False), (_SINGLE, True)):
        with (
            tempfile.TemporaryDirectory() as folder,
            FreshProduction(Path(folder) / "stack", single=is_single) as stack,
        ):
            if "flower" in names:
                stack.run("flower")
                stack.wait_ready("flower")
            time.sleep(seconds)
            memory |= {chart_name: stack.memory(name) / MEGABYTE for name, chart_name in names.items()}
    with _optimizer() as child:
        time.sleep(seconds)
        memory["optimizer"] = psutil.Process(child.pid).memory_info().rss / MEGABYTE
    return memory


@contextmanager
def _optimizer() -> Iterator[Child]:
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig, log = Path(folder) / "kubeconfig", Path(folder) / "log"
        kubeconfig.write_text(json.dumps(_KUBECONFIG), encoding="utf-8")
        command = [sys.executable, "-m", "dsf.cli", "optimizer", "--auth", "none", "--port", "0"]
        child = Child(command, log, {"DSF_KUBECONFIG": str(kubeconfig), "DSF_LOG_FORMAT": "json"})
        try:
            wait_for(lambda: '"port"' in child.tail(), 60, "the optimizer to listen")
            yield child
        finally:
            child.kill()


def measure(quick: bool) -> Measurement:
    """Return a row for each process."""
    memory = measure_processes(_QUICK_SECONDS if quick else _SECONDS)
    figures = [
        Figure(f"memory at rest: {name}", f"{megabytes:.0f} MiB", megabytes, "MiB")
        for name, megabytes in memory.items()
    ]
    return figures, memory


def main() -> int:
    """Measure and print."""
    return run(__doc__, measure)


if __name__ == "__main__":
    sys.exit(main())
