"""`dsf hub`: the services of one process of the hub, from its start to its end.

`controller` works in one process at a time, which a Lease elects, and `beat` likewise, by a lock in Redis: ticks are
sent while the API server is away. `results` and `web` work in each process. Celery's worker owns the main thread and
its signals where `results` is among the services; the others are started before it, in threads of their own.
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
from dsf.process.launch import FAILED, USAGE
from dsf.process.runtimemetrics import add_runtime_metrics
from dsf.process.service import Ending, Service
from dsf.settings import EVERYWHERE, Settings

if TYPE_CHECKING:
    from celery import Celery

    from dsf.backends.protocol import Backend
    from dsf.results.worker import ResultsService
    from dsf.web.service import WebService

log = dsf.log.get(__name__)

#: Seconds for which a process that has lost its Lease goes on, so that its beat gives its lock back.
_LAST_SECONDS: Final = 1.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run(settings: Settings) -> int:
    """Run the services of `settings.targets` until SIGTERM or SIGINT; returns the exit code.

    Call it in the main thread.
    """
    dsf.log.setup(settings)
    gctuning.prepare()
    ending = Ending()
    try:
        process = HubProcess(settings, ending)
    except SettingsError as error:
        log.error("wrong settings", error=str(error))
        return USAGE
    except DsfError as error:
        log.error("the hub cannot start", error=str(error))
        return FAILED
    return process.run()


class HubProcess:
    """The services of one process, and its probes."""

    def __init__(self, settings: Settings, ending: Ending) -> None:
        """Raises SettingsError for a wrong setting, and DsfError if a service cannot be made."""
        self._settings = settings
        self._ending = ending
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
                settings, backend, on_failure=ending.fail, on_lost=self._end_at_once, is_behind=self._is_behind
            )
            self._registry.register(controller)
            self._services.append(controller)
        if "beat" in targets and self._app is not None:
            from dsf.services.beat import BeatService

            self._beat = BeatService(self._app)
            self._services.append(self._beat)
        if "results" in targets and self._app is not None:
            from dsf.results.worker import ResultsService

            self._results = ResultsService(_with_secret(settings, backend), self._app)
        if "web" in targets:
            from dsf.web.service import WebService

            self._web = WebService(settings)
            self._services.append(self._web)
        self._probes = self._make_probes()

    def run(self) -> int:
        """Run until a signal or the failure of a service; returns the exit code."""
        targets = self._settings.targets
        tracing.start(targets[0] if len(targets) == 1 else self._settings.role)
        started: list[Service] = []
        with _signals() as signalled:
            try:
                for service in (self._probes, *self._services):
                    started.append(service)
                    service.start()
                log.info("hub runs", services=[*self._settings.targets], probes=self._probes.address[1])
                self._work(signalled)
            except SettingsError as error:
                log.error("wrong settings", error=str(error))
                return USAGE
            finally:
                # The controller last: another one takes over as soon as it has ended.
                for service in sorted(started, key=lambda service: service.name == "controller"):
                    service.stop()
        log.info("hub ended")
        return self._ending.code

    def _work(self, signalled: SimpleQueue[int]) -> None:
        if self._results is None or self._app is None:
            gctuning.settle()
            signalled.get()
            return
        from celery import signals

        from dsf.results.worker import make_worker

        stopped: list[str] = []
        signals.worker_ready.connect(_settle)
        signals.worker_shutting_down.connect(lambda sig="", **_: stopped.append(sig), weak=False)
        worker = make_worker(self._app, self._settings, self._results)
        # The worker ends in order by SystemExit, until it has handlers of its own.
        for number in _SIGNALS:
            signal.signal(number, lambda *_: sys.exit(0))
        if signalled.empty():
            worker.start()
            if not stopped:
                # The worker ended without being asked to: it has failed.
                self._ending.code = self._ending.code or int(worker.exitcode or FAILED)

    def _make_probes(self) -> Any:
        from dsf.http.probes import make_probes
        from dsf.http.serving import HttpServer

        # Asked from other machines: by kubelet, and by Prometheus.
        host = EVERYWHERE if self._settings.listen_host is None else self._settings.listen_host
        checks = {"/healthz": self._problem, "/readyz": self._unready}
        app = make_probes(self._registry, checks)
        return HttpServer(app, host, self._settings.probe_port, name="probes", variable="DSF_PROBE_PORT")

    def _is_behind(self) -> bool:
        """True if more results wait than this process takes in at once; results workers of other processes yield
        nothing to its writer."""
        return self._results is not None and self._results.is_behind

    def _problem(self) -> str:
        """Why a restart of this process may help; empty if it would not."""
        services: Sequence[Service] = [*self._services, *([self._results] if self._results is not None else [])]
        return "; ".join(problem for service in services if (problem := service.problem()))

    def _unready(self) -> str:
        return self._problem() or threads.problem() or (self._web.unready() if self._web is not None else "")

    def _end_at_once(self) -> None:
        """The Lease is lost. Threads may be in the middle of a write; only the end of the process stops them."""
        if self._beat is not None:
            # Without this the next beat would wait until the lock expires.
            threads.background(self._beat.stop, "end of beat").join(_LAST_SECONDS)
        sys.stderr.flush()
        os._exit(FAILED)


@contextlib.contextmanager
def _signals() -> Iterator[SimpleQueue[int]]:
    """SIGTERM and SIGINT that arrive before a Celery worker handles them itself."""
    # Only SimpleQueue.put is safe in a signal handler, which interrupts its own thread anywhere; an Event is not.
    signalled: SimpleQueue[int] = SimpleQueue()
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: signalled.put(number))
    yield signalled


def _settle(**_: object) -> None:
    gctuning.settle()


def _make_backend(settings: Settings) -> Backend:
    from dsf.backends import make_backend

    return make_backend(settings)


def _make_app(settings: Settings) -> Celery:
    from dsf.worker.application import make_app

    app = make_app(settings)
    # The tasks.
    app.loader.import_default_modules()
    return app


def _with_secret(settings: Settings, backend: Backend | None) -> Settings:
    """Return these settings with the master secret; where there is none, that of the controller, which is made if
    needed.

    Raises BackendError if it cannot be read.
    """
    if backend is None or settings.resolved_signing_secret():
        return settings
    secret = SecretStr(backend.signing_secret())
    return settings.model_copy(update={"signing_secret": secret, "signing_secret_file": None})
