"""Runs the services of one `dsf hub` process, from start to shutdown.

`controller` works in one process at a time, which a Lease elects. `beat` works in one process at a time, which a lock
in Redis elects, so that ticks are sent while the API server is unreachable. `results` and `web` work in each process.
If `results` is among the services, Celery's worker owns the main thread and its signals; the other services start
before the worker, in their own threads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from pydantic import SecretStr

import dsf.log
from dsf.errors import DsfError, SettingsError
from dsf.process import gctuning, threads, tracing
from dsf.process.launch import EXIT_FAILURE, EXIT_USAGE
from dsf.process.runtimemetrics import add_runtime_metrics
from dsf.process.service import Service, Shutdown
from dsf.settings import ALL_ADDRESSES, Settings

if TYPE_CHECKING:
    from celery import Celery

    from dsf.backends.protocol import Backend
    from dsf.results.worker import ResultsService
    from dsf.web.service import WebService

log = dsf.log.get(__name__)

#: Maximum seconds between the loss of the Lease and the end of the process, in which beat can release its lock.
_BEAT_STOP_SECONDS: Final = 1.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run(settings: Settings) -> int:
    """Run the services in `settings.targets` until SIGTERM or SIGINT; return the exit code.

    Call it in the main thread.
    """
    dsf.log.setup(settings)
    gctuning.set_thresholds()
    shutdown = Shutdown()
    try:
        process = HubProcess(settings, shutdown)
    except SettingsError as error:
        log.error("wrong settings", error=str(error))
        return EXIT_USAGE
    except DsfError as error:
        log.error("the hub cannot start", error=str(error))
        return EXIT_FAILURE
    return process.run()


class HubProcess:
    """The services of one process, and its probes."""

    def __init__(self, settings: Settings, shutdown: Shutdown) -> None:
        """Create the services, not started.

        Raises SettingsError for a wrong setting, and DsfError if a service cannot be created.
        """
        self._settings = settings
        self._shutdown = shutdown
        targets = settings.targets
        self._app: Celery | None = None
        backend = _make_backend(settings) if "controller" in targets else None
        self._registry = CollectorRegistry()
        add_runtime_metrics(self._registry)
        self._services: list[Service] = []
        self._beat: Service | None = None
        self._results: ResultsService | None = None
        self._web: WebService | None = None
        if "results" in targets or "beat" in targets:
            self._app = _make_app(settings)
        if backend is not None:
            from dsf.hub.service import ControllerService

            controller = ControllerService(
                settings, backend, on_failure=shutdown.fail, on_lease_lost=self._end_process, is_behind=self._is_behind
            )
            self._registry.register(controller)
            self._services.append(controller)
        if "beat" in targets and self._app is not None:
            from dsf.services.beat import BeatService

            self._beat = BeatService(self._app)
            self._services.append(self._beat)
        if "results" in targets and self._app is not None:
            from dsf.results.worker import ResultsService

            self._results = ResultsService(_ensure_signing_secret(settings, backend), self._app)
        if "web" in targets:
            from dsf.web.service import WebService

            self._web = WebService(settings)
            self._services.append(self._web)
        self._probes = self._make_probes()

    def run(self) -> int:
        """Run until a signal or the failure of a service; return the exit code."""
        targets = self._settings.targets
        tracing.start(targets[0] if len(targets) == 1 else self._settings.role)
        started_services: list[Service] = []
        with _queue_signals() as received_signals:
            try:
                for service in (self._probes, *self._services):
                    started_services.append(service)
                    service.start()
                log.info("hub runs", services=[*self._settings.targets], probes=self._probes.address[1])
                self._run_until_signal(received_signals)
            except SettingsError as error:
                log.error("wrong settings", error=str(error))
                return EXIT_USAGE
            finally:
                # Stop the controller last, because it releases the Lease, and another process then takes over.
                for service in sorted(started_services, key=lambda service: service.name == "controller"):
                    service.stop()
        log.info("hub ended")
        return self._shutdown.code

    def _run_until_signal(self, received_signals: SimpleQueue[int]) -> None:
        """Run Celery's worker if `results` is among the services; otherwise wait for a signal."""
        if self._results is None or self._app is None:
            gctuning.freeze_objects()
            received_signals.get()
            return
        from celery import signals

        from dsf.results.worker import make_worker

        shutdown_signals: list[str] = []
        signals.worker_ready.connect(_freeze_startup_objects)
        signals.worker_shutting_down.connect(lambda sig="", **_: shutdown_signals.append(sig), weak=False)
        worker = make_worker(self._app, self._settings, self._results)
        # The worker installs its own signal handlers when it starts. Until then, SystemExit shuts it down in order.
        for number in _SIGNALS:
            signal.signal(number, lambda *_: sys.exit(0))
        # Do not start the worker if a signal arrived before these handlers were installed.
        if received_signals.empty():
            worker.start()
            if not shutdown_signals:
                # Without a signal, the worker ends only because of a failure.
                self._shutdown.code = self._shutdown.code or int(worker.exitcode or EXIT_FAILURE)

    def _make_probes(self) -> Any:
        """Return the HTTP server of the probes and metrics, not started."""
        from dsf.http.probes import make_probes
        from dsf.http.serving import HttpServer

        # Listen on all addresses by default, because kubelet and Prometheus connect to the pod's IP address.
        host = ALL_ADDRESSES if self._settings.listen_host is None else self._settings.listen_host
        checks = {"/healthz": self._find_problem, "/readyz": self._find_unready_reason}
        app = make_probes(self._registry, checks)
        return HttpServer(app, host, self._settings.probe_port, name="probes", variable="DSF_PROBE_PORT")

    def _is_behind(self) -> bool:
        """Return True if more results wait than this process ingests in one batch.

        The score writer then yields the CPU to the results worker of its own process.
        """
        return self._results is not None and self._results.is_behind

    def _find_problem(self) -> str:
        """Return the problem that a restart of this process may solve; empty if a restart would not help."""
        services: Sequence[Service] = [*self._services, *([self._results] if self._results is not None else [])]
        return "; ".join(problem for service in services if (problem := service.find_problem()))

    def _find_unready_reason(self) -> str:
        """Return why this process is not ready; empty if it is ready."""
        return (
            self._find_problem()
            or threads.describe_failing_threads()
            or (self._web.find_unreadiness() if self._web is not None else "")
        )

    def _end_process(self) -> None:
        """End the process at once because the Lease is lost, even if threads are in the middle of a write."""
        if self._beat is not None:
            # Release beat's lock first, because the next beat would otherwise wait until the lock expires.
            threads.run_in_background(self._beat.stop, "end of beat").join(_BEAT_STOP_SECONDS)
        sys.stderr.flush()
        os._exit(EXIT_FAILURE)


@contextlib.contextmanager
def _queue_signals() -> Iterator[SimpleQueue[int]]:
    """Yield a queue of the SIGTERM and SIGINT signals that arrive before a Celery worker handles them itself."""
    # A signal handler may interrupt its own thread anywhere; SimpleQueue.put is safe there, and Event.set is not.
    received_signals: SimpleQueue[int] = SimpleQueue()
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: received_signals.put(number))
    yield received_signals


def _freeze_startup_objects(**_: object) -> None:
    """Exclude the objects of the startup from garbage collection. Called by Celery when the worker is ready."""
    gctuning.freeze_objects()


def _make_backend(settings: Settings) -> Backend:
    from dsf.backends import make_backend

    return make_backend(settings)


def _make_app(settings: Settings) -> Celery:
    """Return the Celery app with all tasks registered."""
    from dsf.worker.application import make_app

    app = make_app(settings)
    app.loader.import_default_modules()
    return app


def _ensure_signing_secret(settings: Settings, backend: Backend | None) -> Settings:
    """Return the settings with the master secret from the backend, if they have none.

    The backend creates the secret if necessary. Without a backend, the settings are returned unchanged.

    Raises BackendError if the secret cannot be read.
    """
    if backend is None or settings.resolved_signing_secret():
        return settings
    secret = SecretStr(backend.get_master_secret())
    return settings.model_copy(update={"signing_secret": secret, "signing_secret_file": None})
