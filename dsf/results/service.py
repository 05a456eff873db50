"""Background threads of a results worker: writer, sweeper and collector.

A step of Celery's worker, which `dsf.celery` adds for this role: `celery -A dsf.celery worker -Q hub.results` is a
complete results worker. Missing settings are reported before it takes the first result.
"""

from __future__ import annotations

import sys
from functools import partial
from queue import SimpleQueue
from typing import Any

import redis
from celery import bootsteps, signals

import dsf.log
from dsf.backends import make_score_backend
from dsf.errors import DsfError
from dsf.results import lifetime
from dsf.results.collector import Collector
from dsf.results.ingest import master_secret
from dsf.results.sweeper import Sweeper
from dsf.results.writer import Writer
from dsf.settings import Settings, settings
from dsf.store.client import connect
from dsf.threads import SupervisedThread

# Longest time in seconds that a write in progress may delay shutdown.
_STOP_WAIT = 10.0

log = dsf.log.get(__name__)


class Service(bootsteps.StartStopStep):
    """Writer, sweeper and collector of one process, each in its own thread."""

    requires = ("celery.worker.components:Timer",)

    def __init__(self, worker: Any, **options: Any) -> None:
        """Ends the process if a setting is missing or wrong."""
        super().__init__(worker, **options)
        try:
            self._threads, self._client = _prepared(settings())
        except DsfError as error:
            log.error("the results worker cannot start", error=str(error))
            sys.exit(1)
        # Earlier than `stop`: a task that waits for a full Redis must not delay shutdown. Only SimpleQueue.put is safe
        # in a signal handler, which may interrupt its own thread inside an Event's set().
        told: SimpleQueue[None] = SimpleQueue()
        signals.worker_shutting_down.connect(lambda **_: told.put(None), weak=False)
        self._teller = SupervisedThread(partial(_pass_on, told), "stop-teller")

    def start(self, worker: Any) -> None:
        """Start the threads."""
        del worker
        for thread in (*self._threads, self._teller):
            thread.start()

    def stop(self, worker: Any) -> None:
        """Stop the threads and wait for work in progress."""
        del worker
        _tell_to_stop()
        for thread in self._threads:
            thread.join(_STOP_WAIT)
        self._client.close()

    def terminate(self, parent: Any) -> None:
        """See `stop`."""
        self.stop(parent)


def _prepared(config: Settings) -> tuple[list[SupervisedThread], redis.Redis]:
    """The threads, not started, and their Redis client. Raises DsfError."""
    master_secret(config)
    client: redis.Redis = connect(config, name="dsf-results")
    stopping = lifetime.stopping
    work = {
        "score-writer": Writer(client, config, make_score_backend(config), stopping=stopping, wake=lifetime.wake).run,
        "run-sweeper": Sweeper(client, config, stopping).run,
        "mail-collector": Collector(client, config, stopping).run,
    }
    return [SupervisedThread(run, name) for name, run in work.items()], client


def _pass_on(told: SimpleQueue[None]) -> None:
    told.get()
    _tell_to_stop()


def _tell_to_stop() -> None:
    """Signal shutdown to every thread of this process."""
    lifetime.stopping.set()
    lifetime.wake.set()
