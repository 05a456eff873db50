"""The results worker: the threads of intake and sweeper, and the Celery worker that starts them.

A boot step of Celery's worker starts the threads. `celery -A dsf.celery worker -Q hub.results` is therefore a complete
results worker, as is `dsf hub --target results`. Missing settings are reported before the first result is read.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
from celery import Celery, bootsteps

import dsf.log
from dsf import keys
from dsf.errors import DsfError
from dsf.messages import INGEST_TASK
from dsf.process import hubclock
from dsf.process.hubclock import HubClock
from dsf.process.threads import SupervisedThread
from dsf.results.ingest import Ingest, read_master_secret
from dsf.results.intake import Intake
from dsf.settings import Settings, settings
from dsf.store.client import connect, run_until_stopped
from dsf.store.clockguard import ResultsGuard
from dsf.store.clocks import ClockReports
from dsf.store.heartbeats import Heartbeat
from dsf.store.runs import Runs
from dsf.worker.liveness import find_loop_problem

log = dsf.log.get(__name__)

#: Seconds between two sweeps that find nothing.
_SWEEP_SECONDS = 1.0


class ResultsService:
    """Runs intake and sweeper, each in its own thread. Celery's worker starts and stops the service."""

    name = "results"

    def __init__(self, config: Settings, app: Celery) -> None:
        """Raises SettingsError if the master secret is missing or wrong."""
        read_master_secret(config)
        self._stopping = threading.Event()
        client = connect(config, name="dsf-results")
        # Agents may write any bytes into their mailboxes.
        mail = connect(config, name="dsf-results-mail", decode_responses=False)
        self._clients: list[redis.Redis] = [client, mail]
        guard, reports = ResultsGuard(client), ClockReports(client, config)

        def check_clock(clock: HubClock) -> None:
            guard.check(clock.now())
            reports.report(clock)

        self._clock = clock = HubClock(client, on_measured=check_clock)
        ingest = Ingest(client, config, clock=clock.now, own_offset=clock.offset)
        self._intake = Intake(mail, ingest, app.tasks[INGEST_TASK], self._stopping)
        work = {
            "results-intake": _wait_for_clock(clock, self._intake.run),
            "run-sweeper": _wait_for_clock(clock, Sweeper(client, config, self._stopping).run),
        }
        self._threads = [SupervisedThread(run, name) for name, run in work.items()]

    @property
    def is_behind(self) -> bool:
        """True if results still wait after the last read, so that other work should wait."""
        return self._intake.is_behind

    def start(self) -> None:
        """Start the threads."""
        hubclock.use(self._clock)
        self._clock.start()
        for thread in self._threads:
            thread.start()

    def begin_stop(self) -> None:
        """Tell the threads to end after their current work."""
        self._stopping.set()
        self._clock.stop()

    def stop(self) -> None:
        """Stop, and wait for the work in progress."""
        self.begin_stop()
        for thread in self._threads:
            thread.join(10.0)
        for client in self._clients:
            client.close()

    def find_problem(self) -> str:
        """See `dsf.process.service.Service`. An unreachable Redis is not a problem, because the worker reconnects."""
        return find_loop_problem()


class ResultsStep(bootsteps.StartStopStep):
    """Boot step that starts and stops the service, which is an option of the worker or created from the settings."""

    requires = ("celery.worker.components:Timer",)

    def __init__(self, worker: Any, results: ResultsService | None = None, **options: Any) -> None:
        """Exit the process if a setting is missing or invalid."""
        super().__init__(worker, **options)
        if results is None:
            try:
                results = ResultsService(settings(), worker.app)
            except DsfError as error:
                log.error("the results worker cannot start", error=str(error))
                sys.exit(1)
        self._service = results

    def start(self, worker: Any) -> None:
        """Start the threads."""
        del worker
        self._service.start()

    def close(self, worker: Any) -> None:
        """Tell the threads to end, before Celery stops any step."""
        del worker
        self._service.begin_stop()

    def stop(self, worker: Any) -> None:
        """Wait for the work in progress."""
        del worker
        self._service.stop()

    def terminate(self, parent: Any) -> None:
        """See `stop`."""
        self.stop(parent)


def make_worker(app: Celery, config: Settings, results: ResultsService) -> Any:
    """Return the Celery worker of this service. Start it in the main thread, because it installs signal handlers."""
    return app.Worker(
        hostname=f"results@{socket.gethostname()}",
        queues=[keys.RESULTS_QUEUE],
        pool=app.conf.worker_pool,
        loglevel=config.log_level,
        # The hub logs its services instead of Celery's banner.
        quiet=True,
        task_events=True,
        without_gossip=True,
        without_mingle=True,
        # `dsf.worker.events` sends heartbeats.
        without_heartbeat=True,
        # The option of `ResultsStep`.
        results=results,
    )


def _wait_for_clock(clock: HubClock, work: Callable[[], object]) -> Callable[[], object]:
    """Return `work` preceded by a wait for the first measurement of the hub's clock, to which results are compared."""

    def run() -> None:
        clock.wait()
        work()

    return run


class Sweeper:
    """Declares overdue runs lost, and removes data of deleted pairs. Several workers may sweep concurrently."""

    def __init__(self, client: redis.Redis, settings: Settings, stopping: threading.Event) -> None:
        self._runs = Runs(client)
        self._settings = settings
        self._stopping = stopping
        # Pairs that the last check found orphaned, but not the check before it.
        self._orphans: set[str] = set()
        self._heartbeat = Heartbeat(client, keys.SWEEP_STAGE)
        self._next_leftovers_at = 0.0

    def run(self) -> None:
        """Sweep until stopped."""
        if not self._stopping.wait(_SWEEP_SECONDS):
            run_until_stopped(self._run_pass, self._stopping, task="sweep lost runs", retry_seconds=_SWEEP_SECONDS)

    def _run_pass(self) -> float:
        has_more = self.sweep(hubclock.now())
        if time.monotonic() >= self._next_leftovers_at:
            self._next_leftovers_at = time.monotonic() + 60.0
            self.forget_leftovers()
            self._runs.forget_lags()
        self._heartbeat.renew()
        return 0.2 if has_more else _SWEEP_SECONDS

    def sweep(self, now: float) -> bool:
        """Declare overdue runs lost, and return True if another pass should follow soon."""
        lost_runs, has_more = self._runs.sweep(now=now, lost_after=self._settings.lost_after)
        if lost_runs:
            log.warning("runs lost", count=len(lost_runs), first=lost_runs[:5])
        return has_more

    def forget_leftovers(self) -> None:
        """Remove the data of pairs that this check and the previous one found orphaned.

        A pair that only this check finds may be one that the hub is just removing.
        """
        orphans = self._runs.find_leftovers()
        forgotten_pairs = self._runs.forget(orphans & self._orphans)
        self._orphans = orphans - self._orphans
        if forgotten_pairs:
            log.info("removed pairs forgotten", count=len(forgotten_pairs), first=forgotten_pairs[:5])
