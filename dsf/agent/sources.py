"""What this agent keeps for its sources, made from the settings, and what they do between cycles."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.registry import Collector, CollectorRegistry

import dsf.log
from dsf import metrics as names
from dsf.agent.config import Summaries, Watching
from dsf.settings import Settings
from dsf.sources.cluster import ClusterView
from dsf.sources.held import Held
from dsf.sources.registry import begin, plugins, type_of
from dsf.sources.window import Budget

log = dsf.log.get(__name__)


class SourceState:
    """Made by the runtime before the configuration is watched, used by cycles."""

    def __init__(
        self, settings: Settings, config: Watching, cluster: ClusterView | None, registry: CollectorRegistry
    ) -> None:
        """`cluster` is None for an agent that does not run on Kubernetes."""
        self.held = Held(Budget(settings.agent_window_series, settings.agent_window_samples), config.summaries)
        self.held.cluster = cluster
        self.held.settings = settings
        registry.register(_Collector(self.held))
        if plugins():
            log.info("source plug-ins are installed", types=list(plugins()))
        config.on_change(self._begin)

    def stop(self) -> None:
        """Receive no more."""
        self.held.stop()

    def _begin(self, summaries: Summaries) -> None:
        """Begin what the scorers' sources do between cycles: before their first cycle, so that it has something."""
        for name in sorted({type_of(source) for one in summaries.values() for source in one.each_source}):
            try:
                begin(name, self.held)
            except Exception as error:  # noqa: BLE001 (other people's code; the scorers' cycles try again, and say so)
                log.error("a source cannot begin", type=name, problem=str(error))


class _Collector(Collector):
    """How much is held, and what sources say of what they do."""

    def __init__(self, held: Held) -> None:
        self._held = held

    def collect(self) -> Iterator[Metric]:
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
        for one in self._held.running:
            yield from one.families()
