"""What runs beside the tasks of a results worker: the writer and the sweeper.

They start and stop with the worker by Celery's signals, so that `celery -A dsf.celery worker -Q hub.results` is a whole
results worker. What is missing for one is said before it takes the first result.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import redis
from celery import signals

import dsf.log
from dsf.errors import DsfError
from dsf.results import lifetime
from dsf.results.backend import ScoreBackend
from dsf.results.ingest import master_secret
from dsf.results.sweeper import Sweeper
from dsf.results.writer import Writer
from dsf.settings import Settings, settings
from dsf.store.client import connect
from dsf.workerprobes import Liveness

# Longest time that one write in progress may delay the end of the worker.
_STOP_WAIT = 10.0

log = dsf.log.get(__name__)


class Service:
    """The writer and the sweeper of one process, each in a thread of its own."""

    def __init__(self, config: Settings, backend: ScoreBackend) -> None:
        self._client: redis.Redis = connect(config, name="dsf-results")
        writer = Writer(self._client, config, backend, stopping=lifetime.stopping, wake=lifetime.wake)
        sweeper = Sweeper(self._client, config, lifetime.stopping)
        self._threads = [
            threading.Thread(target=writer.run, name="score-writer", daemon=True),
            threading.Thread(target=sweeper.run, name="run-sweeper", daemon=True),
        ]

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Tell both to stop and wait for what they are at."""
        tell_to_stop()
        for thread in self._threads:
            # They are not started where the worker ended before it was ready.
            if thread.is_alive():
                thread.join(_STOP_WAIT)
        self._client.close()


def tell_to_stop() -> None:
    """Tell every thread of this process that the worker ends."""
    lifetime.stopping.set()
    lifetime.wake.set()


_service: Service | None = None


@signals.worker_init.connect
def _prepare(sender: Any = None, **_: Any) -> None:
    global _service  # noqa: PLW0603 - one worker per process, and signals have no other place to keep it
    config = settings()
    if config.role != "results":
        return
    try:
        master_secret(config)
        _service = Service(config, _backend(config))
    except DsfError as error:
        log.error("the results worker cannot start", error=str(error))
        sys.exit(1)
    # The worker's parts are put together after this.
    sender.app.steps["worker"].add(Liveness)


def _backend(config: Settings) -> ScoreBackend:
    # Only here: whoever imports the tasks needs no Kubernetes client.
    from dsf.hub.backends import make_score_backend

    return make_score_backend(config)


@signals.worker_ready.connect
def _start(**_: Any) -> None:
    if _service is not None:
        _service.start()


@signals.worker_shutting_down.connect
def _begin_to_stop(**_: Any) -> None:
    tell_to_stop()


@signals.worker_shutdown.connect
def _stop(**_: Any) -> None:
    if _service is not None:
        _service.stop()
