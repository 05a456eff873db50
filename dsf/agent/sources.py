"""What this agent keeps for its sources, made from the settings: windows, and the receiver of pushed metrics."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

import dsf.log
from dsf import metrics as names
from dsf.api.summary import ScorerSummary
from dsf.errors import SettingsError
from dsf.settings import Settings
from dsf.sources.cluster import ClusterView
from dsf.sources.held import Held
from dsf.sources.registry import plugins
from dsf.sources.window import Budget

if TYPE_CHECKING:
    from dsf.sources.otlp.received import Received
    from dsf.sources.otlp.receiver import Receiver

log = dsf.log.get(__name__)


class SourceState:
    """Made by the runtime, used by cycles."""

    def __init__(
        self,
        settings: Settings,
        summaries: Callable[[], Mapping[str, ScorerSummary]],
        cluster: ClusterView | None,
        registry: CollectorRegistry,
    ) -> None:
        """`cluster` is None for an agent that does not run on Kubernetes. Raises SettingsError."""
        budget = Budget(settings.agent_window_series, settings.agent_window_samples)
        self.held = Held(budget, summaries)
        self.held.cluster = cluster
        self._settings = settings
        self._received: Received | None = None
        self._receiver: Receiver | None = None
        if settings.otlp_port is not None:
            _require_otel()
            from dsf.sources.otlp.received import Received

            self.held.received = self._received = Received(budget, summaries)
        registry.register(_Collector(self.held))

    @property
    def otlp_port(self) -> int | None:
        """The port at which metrics are received; None while they are not."""
        return self._receiver.port if self._receiver is not None else None

    def start(self) -> None:
        """Say which plug-ins there are, and receive metrics, if that is wanted. Raises SettingsError."""
        if plugins():
            log.info("source plug-ins are installed", types=list(plugins()))
        settings, received = self._settings, self._received
        if received is None or settings.otlp_port is None:
            return
        from dsf.sources.otlp.receiver import Receiver

        host, port = settings.otlp_host, settings.otlp_port
        try:
            self._receiver = Receiver(
                received, host, port, max_bytes=settings.otlp_max_bytes, token_file=settings.otlp_token_file
            )
        except OSError as error:
            raise SettingsError(
                f"DSF_OTLP_PORT: cannot listen on {host}:{port}: {error.strerror}; 0 takes a free port"
            ) from None
        self._receiver.start()
        log.info("metrics are received", host=host, port=self._receiver.port)

    def stop(self) -> None:
        """Receive no more."""
        if self._receiver is not None:
            self._receiver.stop()


def _require_otel() -> None:
    # find_spec of a submodule imports its parents, which are namespaces and may not be there.
    try:
        found = importlib.util.find_spec("opentelemetry.proto.collector")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise SettingsError(
            "DSF_OTLP_PORT: receiving metrics needs the extra `otel`: pip install 'dynamic-scoring-framework[otel]'"
        )


class _Collector(Collector):
    """How much is held, and what became of what was pushed."""

    def __init__(self, held: Held) -> None:
        self._held = held

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        self._held.tidy()
        series, samples = names.WINDOW_SERIES.gauge(), names.WINDOW_SAMPLES.gauge()
        series.add_metric((), self._held.budget.series)
        samples.add_metric((), self._held.budget.samples)
        yield series
        yield samples
        objects = names.OBJECT_VALUES.counter()
        for result, number in list(self._held.object_values.items()):
            objects.add_metric((result,), number)
        yield objects
        if self._held.received is not None:
            pushed = names.OTLP_SAMPLES.counter()
            for result, number in list(self._held.received.counts.items()):
                pushed.add_metric((result,), number)
            yield pushed
