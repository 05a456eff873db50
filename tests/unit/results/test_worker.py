"""What runs beside the tasks is told to stop by a signal, whatever that has interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.results.bed import SECRET

# The signal comes while the main thread is inside of the event that the handler is about: its lock is held.
CODE = """
import signal
from celery import signals
from dsf.celery import app
from dsf.results import worker

class Worker:
    consumer = None


Worker.app = app
app.loader.import_default_modules()
made = worker.Service(Worker)
made._threads.clear()
made.start(None)
signal.signal(signal.SIGTERM, lambda *_: signals.worker_shutting_down.send(sender="worker"))
for event in (made._stopping, made._wake):
    def notify_all(event=event, real=event._cond.notify_all):
        event._cond.notify_all = real
        signal.raise_signal(signal.SIGTERM)
        real()
    event._cond.notify_all = notify_all
made._wake.set()
assert made._stopping.wait(60)
made.stop(None)
print("stopped")
"""


def test_a_signal_in_the_middle_of_an_event_ends_the_worker(tmp_path: Path) -> None:
    settings = {
        "DSF_ROLE": "results",
        "DSF_SIGNING_SECRET": SECRET,
        "DSF_BACKEND": "dir",
        "DSF_MANIFESTS": str(tmp_path),
    }
    environment = os.environ | settings
    # In a process of its own, which would stand still for ever.
    ended = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert ended.stdout == "stopped\n", ended.stderr
