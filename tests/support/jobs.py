"""Completes Jobs on an API server without kubelet: Helm waits for the Jobs of its hooks, which other tests run as
processes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dsf.errors import BackendError
from dsf.kube.resources import Resource
from dsf.kube.session import Session

JOBS = Resource("batch", "v1", "jobs", "Job")


@contextlib.contextmanager
def jobs_complete(kubeconfig: Path, namespace: str, context: str | None = None) -> Iterator[None]:
    """Set each Job of the namespace to complete as soon as it exists, while the context is open."""
    stop = threading.Event()

    def play(session: Session) -> None:
        while not stop.wait(0.1):
            for job in session.get(JOBS.path(namespace))["items"]:
                if not job.get("status", {}).get("completionTime"):
                    # Helm may have removed the Job, or the controller may have changed it; the next round sees that.
                    with contextlib.suppress(BackendError):
                        session.merge(JOBS.path(namespace, job["metadata"]["name"], "status"), {"status": _complete()})

    with contextlib.closing(Session.load(kubeconfig, context)) as session:
        player = threading.Thread(target=play, args=(session,))
        player.start()
        try:
            yield
        finally:
            stop.set()
            player.join()


def _complete() -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("SuccessCriteriaMet", "Complete")
    ]
    return {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions}
