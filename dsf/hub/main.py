"""`dsf hub`: run the hub controller until shutdown.

On Kubernetes several may run; one leads, the others wait for its lease.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Literal

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import dsf.log
from dsf import metrics
from dsf.backends import make_backend, make_election
from dsf.backends.protocol import Election
from dsf.errors import DsfError, SettingsError
from dsf.hub.hub import Hub
from dsf.process import memory, threads
from dsf.process.exposition import MetricsServer
from dsf.process.launch import FAILED, USAGE
from dsf.process.threads import background
from dsf.settings import Settings

log = dsf.log.get(__name__)


#: Shutdown was requested, this hub is the leader, or it could not start.
_Happened = Literal["end", "lead"] | BaseException


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. Call it in the main thread."""
    dsf.log.setup(settings)
    memory.prepare()
    # Not an Event: only SimpleQueue.put is safe in a signal handler, which interrupts its own thread anywhere.
    happened: SimpleQueue[_Happened] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: happened.put("end"))
    try:
        election = make_election(settings, lambda: happened.put("lead"), _stop_writing)
        hub = Hub(settings, make_backend(settings))
        server = _metrics_server(settings, hub, election)
    except SettingsError as error:
        log.error("wrong settings", error=str(error))
        return USAGE
    memory.settle()
    log.info("hub controller waits for its turn", backend=settings.backend)
    election.start()
    if server is not None:
        server.start()
        log.info("probes and metrics served", port=server.port)
    try:
        if happened.get() == "end":
            return 0
        return _work(hub, happened)
    finally:
        hub.stop()
        if server is not None:
            server.stop()
        # Last: another hub takes over as soon as this is done.
        election.stop()


def _work(hub: Hub, happened: SimpleQueue[_Happened]) -> int:
    """Work until shutdown, also during startup; returns the exit code."""

    def start() -> None:
        try:
            hub.start()
        except BaseException as error:  # noqa: BLE001 (handed over to the main thread)
            happened.put(error)

    starting = background(start, "start")
    while (event := happened.get()) == "lead":
        log.debug("leading already")
    if isinstance(event, SettingsError):
        log.error("wrong settings", error=str(event))
        return USAGE
    if isinstance(event, DsfError):
        log.error("the hub controller cannot start", error=str(event))
        return FAILED
    if isinstance(event, BaseException):
        raise event
    if starting.is_alive():
        hub.interrupt()
        # It may be in a request to the API server that nothing answers.
        starting.join(2.0)
    return 0


def _stop_writing() -> None:
    """The lease is lost. Threads may be in the middle of a write; only the process's end stops them."""
    sys.stderr.flush()
    os._exit(FAILED)


def _metrics_server(settings: Settings, hub: Hub, election: Election) -> MetricsServer | None:
    """Probes and metrics; None without `listen_port`. Raises SettingsError if the port is unavailable."""
    if settings.listen_port is None:
        return None

    def problem() -> str:
        return hub.problem() if election.campaigning else "this hub neither works nor waits for its turn"

    host, port = settings.listen_address("hub")
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(HubMetrics(hub, election))
    checks = {"/healthz": problem, "/readyz": lambda: problem() or threads.problem()}
    try:
        return MetricsServer(registry, host, port, checks)
    except OSError as error:
        raise SettingsError(
            f"DSF_LISTEN_PORT: cannot listen on port {port} ({error.strerror}); 0 takes a free one"
        ) from None


class HubMetrics(Collector):
    """Metrics that are made anew at each scrape."""

    def __init__(self, hub: Hub, election: Election) -> None:
        self._hub = hub
        self._election = election

    def collect(self) -> Iterator[Metric]:
        """See the library's Collector."""
        leading = metrics.HUB_LEADING.gauge()
        leading.add_metric((), float(self._election.leading))
        yield leading
        redis_up = metrics.HUB_REDIS_UP.gauge()
        redis_up.add_metric((), float(not self._hub.redis_is_away))
        yield redis_up
        lengths = metrics.HUB_QUEUE_LENGTH.gauge()
        reconciliations = metrics.HUB_RECONCILIATIONS.counter()
        for controller in self._hub.controllers:
            lengths.add_metric((controller.name,), len(controller.queue))
            for result, number in dict(controller.results).items():
                reconciliations.add_metric((controller.name, result), number)
        yield lengths
        yield reconciliations
        without_room = metrics.HUB_WITHOUT_ROOM.gauge()
        for namespace, number in self._hub.without_room().items():
            without_room.add_metric((namespace,), number)
        yield without_room
