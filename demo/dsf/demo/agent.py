"""`python -m dsf.demo.agent URL`: the agent of a cluster whose Prometheus at this URL has just started.

Prometheus scrapes no target in its first 5 s. Meanwhile the agent loads, connects and serves /metrics. It takes its
first ticks as soon as there are data: without data the first scores would be empty, and the next ones would follow an
interval later.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from dsf.demo.services import has_data
from dsf.process.launch import launch

#: Maximum seconds to wait for the first data.
_TIMEOUT_SECONDS = 15.0
#: Seconds between two queries for the first data.
_POLL_SECONDS = 0.05


def wait_for_data(prometheus_url: str, stopping: threading.Event, timeout: float = _TIMEOUT_SECONDS) -> bool:
    """Wait until this Prometheus has data, and return True, or False after `timeout` seconds or at shutdown."""
    deadline = time.monotonic() + timeout
    while not (is_served := has_data(prometheus_url)) and time.monotonic() < deadline:
        if stopping.wait(_POLL_SECONDS):
            break
    return is_served


def run(prometheus_url: str) -> None:
    """Run the agent of the environment's settings, which takes no tick before there are data."""
    from celery import signals

    stopping = threading.Event()

    def wait(**_: Any) -> None:
        wait_for_data(prometheus_url, stopping)

    # Celery sends `worker_ready` when the worker is connected, before its main loop takes the first message.
    signals.worker_ready.connect(wait, weak=False)
    signals.worker_shutting_down.connect(lambda **_: stopping.set(), weak=False)
    launch("agent", "dsf.agent.main:run")


if __name__ == "__main__":
    run(sys.argv[1])
