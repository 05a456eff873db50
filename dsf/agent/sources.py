"""State and background work of this agent's sources between cycles."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.registry import Collector, CollectorRegistry

import dsf.log
from dsf import metrics as names
from dsf.agent.config import Summaries, Watching
from dsf.settings import Settings
from dsf.sources.memory import SourceMemory
from dsf.sources.registry import begin, plugins, type_of
from dsf.sources.window import WindowBudget

log = dsf.log.get(__name__)


class SourceState:
    """Created by the runtime before the configuration watch, used by cycles."""

    def __init__(self, settings: Settings, config: Watching, registry: CollectorRegistry) -> None:
        self.memory = SourceMemory(
            WindowBudget(settings.agent_window_series, settings.agent_window_samples), config.summaries
        )
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
        if self.memory.running:
            # It ends what the scorers that are gone have needed.
            self.memory.tidy()
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
        for activity in self._memory.running:
            yield from activity.families()
