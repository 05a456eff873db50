"""The hub controller's own HTTP server: /healthz and /readyz for Kubernetes' probes, and /metrics about itself.

It serves from the start, also on a standby: that is as ready as the leader, and Kubernetes must not count it as
missing.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

import dsf.log
from dsf import metrics
from dsf.backends.protocol import Election
from dsf.errors import SettingsError
from dsf.hub.hub import Hub
from dsf.process import threads
from dsf.process.exposition import MetricsServer
from dsf.settings import Settings

log = dsf.log.get(__name__)


class HubExposition:
    """No-op without `listen_port`."""

    def __init__(self, settings: Settings, hub: Hub, election: Election) -> None:
        """Raises SettingsError if the port is unavailable."""
        self._hub = hub
        self._election = election
        self._server: MetricsServer | None = None
        if settings.listen_port is None:
            return
        host, port = settings.listen_address("hub")
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_HubCollector(hub, election))
        try:
            self._server = MetricsServer(registry, host, port, {"/healthz": self._problem, "/readyz": self._unready})
        except OSError as error:
            raise SettingsError(
                f"DSF_LISTEN_PORT: cannot listen on port {port} ({error.strerror}); 0 takes a free one"
            ) from None

    def start(self) -> None:
        """Start serving."""
        if self._server is not None:
            self._server.start()
            log.info("probes and metrics served", port=self._server.port)

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.stop()

    def _unready(self) -> str:
        return self._problem() or threads.problem()

    def _problem(self) -> str:
        if not self._election.campaigning:
            return "this hub neither works nor waits for its turn"
        return self._hub.problem()


class _HubCollector(Collector):
    """Rebuilt at each scrape."""

    def __init__(self, hub: Hub, election: Election) -> None:
        self._hub = hub
        self._election = election

    def collect(self) -> Iterator[Metric]:
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
