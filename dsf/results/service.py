"""Background threads of a results worker: intake, writer and sweeper.

A step of Celery's worker, which `dsf.celery` adds for this role: `celery -A dsf.celery worker -Q hub.results` is a
complete results worker. Missing settings are reported before it takes the first result.
"""

from __future__ import annotations

import sys
import threading
from functools import partial
from queue import SimpleQueue
from typing import Any

import redis
from celery import bootsteps, signals

import dsf.log
from dsf.backends import make_score_backend
from dsf.errors import DsfError
from dsf.messages import INGEST_TASK
from dsf.process.threads import SupervisedThread
from dsf.results.ingest import Ingest, master_secret
from dsf.results.intake import Intake
from dsf.results.sweeper import Sweeper
from dsf.results.writer import Writer
from dsf.settings import Settings, settings
from dsf.store.client import connect
from dsf.worker.taskevents import TaskEvents

log = dsf.log.get(__name__)


class Service(bootsteps.StartStopStep):
    """Intake, writer and sweeper of one process, each in its own thread."""

    requires = ("celery.worker.components:Timer",)

    def __init__(self, worker: Any, **options: Any) -> None:
        """Ends the process if a setting is missing or wrong."""
        super().__init__(worker, **options)
        self._stopping = threading.Event()
        # Set when a pair must be checked now.
        self._wake = threading.Event()
        try:
            self._threads, self._clients = self._prepared(settings(), worker.app)
        except DsfError as error:
            log.error("the results worker cannot start", error=str(error))
            sys.exit(1)
        self._events = TaskEvents(worker)
        # Earlier than `stop`, so that no thread begins anew. Only SimpleQueue.put is safe in a signal handler, which
        # may interrupt its own thread inside an Event's set().
        stop_signals: SimpleQueue[None] = SimpleQueue()
        signals.worker_shutting_down.connect(lambda **_: stop_signals.put(None), weak=False)
        self._teller = SupervisedThread(partial(self._pass_on, stop_signals), "stop-teller")

    def start(self, worker: Any) -> None:
        """Start the threads."""
        del worker
        for thread in (*self._threads, self._teller):
            thread.start()

    def stop(self, worker: Any) -> None:
        """Stop the threads and wait for work in progress."""
        del worker
        self._tell_to_stop()
        for thread in self._threads:
            # A write in progress may delay shutdown.
            thread.join(10.0)
        for client in self._clients:
            client.close()

    def terminate(self, parent: Any) -> None:
        """See `stop`."""
        self.stop(parent)

    def _prepared(self, config: Settings, app: Any) -> tuple[list[SupervisedThread], list[redis.Redis]]:
        """The threads, not started, and their Redis clients. Raises DsfError."""
        master_secret(config)
        client = connect(config, name="dsf-results")
        # Agents may write any bytes into their mailboxes.
        mail = connect(config, name="dsf-results-mail", decode_responses=False)
        ingest = Ingest(client, config, on_change=self._wake.set)
        intake = Intake(mail, ingest, app.tasks[INGEST_TASK], self._stopping)
        writer = Writer(
            client,
            config,
            make_score_backend(config),
            stopping=self._stopping,
            wake=self._wake,
            is_behind=lambda: intake.is_behind,
        )
        work = {
            "results-intake": intake.run,
            "score-writer": writer.run,
            "run-sweeper": Sweeper(client, config, self._stopping).run,
        }
        return [SupervisedThread(run, name) for name, run in work.items()], [client, mail]

    def _pass_on(self, stop_signals: SimpleQueue[None]) -> None:
        stop_signals.get()
        self._tell_to_stop()

    def _tell_to_stop(self) -> None:
        """Signal shutdown to every thread of this process."""
        self._stopping.set()
        self._wake.set()
