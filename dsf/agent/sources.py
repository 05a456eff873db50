"""State and background work of this agent's sources between cycles."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.registry import Collector, CollectorRegistry

import dsf.log
from dsf import metrics as names
from dsf.agent.config import Summaries, Watching
from dsf.settings import Settings
from dsf.sources.cluster import ClusterView
from dsf.sources.memory import SourceMemory
from dsf.sources.registry import begin, plugins, type_of
from dsf.sources.window import window_budget

log = dsf.log.get(__name__)


class SourceState:
    """Created by the runtime before the configuration watch, used by cycles."""

    def __init__(
        self, settings: Settings, config: Watching, cluster: ClusterView | None, registry: CollectorRegistry
    ) -> None:
        """`cluster` is None for an agent outside of Kubernetes."""
        self.memory = SourceMemory(window_budget(settings.agent_window_series), config.summaries)
        self.memory.cluster = cluster
        self.memory.settings = settings
        registry.register(_Collector(self.memory))
        if plugins():
            log.info("source plug-ins are installed", types=list(plugins()))
        config.on_change(self._begin)

    def stop(self) -> None:
        """Stop receiving."""
        self.memory.stop()

    def _begin(self, summaries: Summaries) -> None:
        """Start the sources' background work, before their scorers' first cycle, so that it has data."""
        for name in sorted({type_of(source) for summary in summaries.values() for source in summary.each_source}):
            try:
                begin(name, self.memory)
            except Exception as error:  # noqa: BLE001 (third-party code; the scorers' cycles retry and report it)
                log.error("a source cannot begin", type=name, problem=str(error))


class _Collector(Collector):
    """Amount of kept data, and metrics of the sources."""

    def __init__(self, memory: SourceMemory) -> None:
        self._memory = memory

    def collect(self) -> Iterator[Metric]:
        self._memory.tidy()
        series, samples = names.WINDOW_SERIES.gauge(), names.WINDOW_SAMPLES.gauge()
        series.add_metric((), self._memory.budget.series)
        samples.add_metric((), self._memory.budget.samples)
        yield series
        yield samples
        objects = names.OBJECT_VALUES.counter()
        for result, number in list(self._memory.object_values.items()):
            objects.add_metric((result,), number)
        yield objects
        for activity in self._memory.running:
            yield from activity.families()
