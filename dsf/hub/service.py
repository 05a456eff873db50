"""Runs the hub controller as a service that works only while its process is the leader."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import dsf.log
from dsf import metrics
from dsf.backends import make_election
from dsf.backends.protocol import Backend
from dsf.errors import DsfError, SettingsError
from dsf.hub.hub import Hub
from dsf.process.launch import EXIT_FAILURE, EXIT_USAGE
from dsf.process.threads import run_in_background
from dsf.settings import Settings

if TYPE_CHECKING:
    from dsf.hub.lostpod import LostPodRemover

log = dsf.log.get(__name__)

#: Maximum seconds to wait for the end of an interrupted start, which may wait for a response of the API server.
_INTERRUPT_SECONDS: Final = 2.0


def _make_lost_pod_remover(settings: Settings) -> LostPodRemover | None:
    if not settings.redis_movable_pod:
        return None
    # The Kubernetes client takes 40 MB of memory, which a hub on a folder does not need.
    from dsf.hub.lostpod import LostPodRemover
    from dsf.kube.session import Session

    return LostPodRemover(Session.load(settings.kubeconfig), settings.redis_movable_pod)


class ControllerService(Collector):
    """The hub controller and its candidacy for leadership. It also collects the controller's metrics."""

    name = "controller"

    def __init__(
        self,
        settings: Settings,
        backend: Backend,
        *,
        on_failure: Callable[[int], None],
        on_lease_lost: Callable[[], None],
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare the controller and its candidacy; `start` begins them. Raises SettingsError.

        `on_failure` gets the exit code if the controller cannot start or continue. `on_lease_lost` is called when the
        process stops being the leader. It must end the process immediately, because threads may be in the middle of a
        write. `is_behind` returns True while this process has unprocessed results.
        """
        self._settings = settings
        self._on_failure = on_failure
        self._election = make_election(settings, self._on_elected, on_lease_lost)
        self._hub = Hub(settings, backend, on_unusable=self._fail, is_behind=is_behind)
        self._lost_pod_remover = _make_lost_pod_remover(settings)
        self._start_thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the candidacy; the controller starts when this process becomes the leader."""
        log.info("hub controller waits for its turn", backend=self._settings.backend)
        self._election.start()

    def stop(self) -> None:
        """End all work, then release the leadership, so that another process takes over."""
        self._stopping.set()
        if self._start_thread is not None and self._start_thread.is_alive():
            self._hub.interrupt()
            self._start_thread.join(_INTERRUPT_SECONDS)
        self._hub.stop()
        if self._lost_pod_remover is not None:
            self._lost_pod_remover.stop()
        self._election.stop()

    def find_problem(self) -> str:
        """Return why a restart is needed; empty if all works, or if only the API server or Redis is unreachable."""
        if not self._election.is_campaigning:
            return "the controller neither works nor waits for its turn"
        return self._hub.find_problem()

    def collect(self) -> Iterator[Metric]:
        """Implement `prometheus_client.registry.Collector.collect`."""
        leading = metrics.HUB_LEADING.make_gauge()
        leading.add_metric((), float(self._election.is_leading))
        yield leading
        redis_up = metrics.HUB_REDIS_UP.make_gauge()
        redis_up.add_metric((), float(not self._hub.is_redis_unreachable))
        yield redis_up
        lengths = metrics.HUB_QUEUE_LENGTH.make_gauge()
        reconciliations = metrics.HUB_RECONCILIATIONS.make_counter()
        for controller in self._hub.controllers:
            lengths.add_metric((controller.name,), len(controller.queue))
            for result, number in dict(controller.results).items():
                reconciliations.add_metric((controller.name, result), number)
        yield lengths
        yield reconciliations
        without_room = metrics.HUB_WITHOUT_ROOM.make_gauge()
        for namespace, number in self._hub.count_scorers_without_room().items():
            without_room.add_metric((namespace,), number)
        yield without_room

    def _fail(self, error: SettingsError) -> None:
        log.error("wrong settings", error=str(error))
        self._on_failure(EXIT_USAGE)

    def _on_elected(self) -> None:
        # Start the remover before the hub, whose start may need the Redis that is lost.
        if self._lost_pod_remover is not None:
            self._lost_pod_remover.start()
        # Start in another thread, because the election thread must continue to renew the Lease.
        self._start_thread = run_in_background(self._start_hub, "start")

    def _start_hub(self) -> None:
        try:
            self._hub.start()
        except SettingsError as error:
            self._fail(error)
        except DsfError as error:
            if self._stopping.is_set():
                # `stop` has interrupted the start, so this is not a failure.
                log.info("the start of the hub controller was interrupted", error=str(error))
                return
            log.error("the hub controller cannot start", error=str(error))
            self._on_failure(EXIT_FAILURE)
        except BaseException:
            self._on_failure(EXIT_FAILURE)
            raise
