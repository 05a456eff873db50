"""What an agent keeps between cycles, for sources that only tell the present. One per process."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import Metric

import dsf.log
from dsf.api.summary import ScorerSummary
from dsf.errors import HttpError
from dsf.settings import Settings
from dsf.sources.cluster import ClusterView
from dsf.sources.window import LOOKBACK, Budget, Grid, Window, WindowFullError

log = dsf.log.get(__name__)


class Running(Protocol):
    """What a source does between cycles, such as to receive."""

    def tidy(self) -> None:
        """Drop what is too old, or what no scorer asks for any more."""

    def families(self) -> Iterable[Metric]:
        """For the agent's /metrics."""

    def stop(self) -> None:
        """The agent ends."""


#: Begins it; called once for each agent.
Start = Callable[["Held", Settings], Running]


@dataclass(slots=True)
class _Kept:
    """The window of one scorer, and what it is of: another source or query begins a new one."""

    identity: tuple[str, str, str]
    window: Window


class Held:
    """Windows of scorers, what sources do between cycles, and the view of the cluster. Thread-safe."""

    def __init__(self, budget: Budget, summaries: Callable[[], Mapping[str, ScorerSummary]]) -> None:
        """`summaries` are those in force, by the scorer's name."""
        self.budget = budget
        #: Of the agent; None outside of one, where nothing goes on between cycles.
        self.settings: Settings | None = None
        #: None: the agent does not run on Kubernetes.
        self.cluster: ClusterView | None = None
        #: What became of fields that were read from objects -> how many.
        self.object_values: Counter[str] = Counter()
        self.summaries = summaries
        #: By the names of scorer and source.
        self._windows: dict[tuple[str, str | None], _Kept] = {}
        self._lock = threading.Lock()
        self._running: dict[Start, Running] = {}
        # Guards _running, also while one is started.
        self._starting = threading.Lock()

    def begun(self, start: Start) -> Running | None:
        """What `start` gave, which is called for the first who asks; None outside of an agent. Raises what it does."""
        with self._starting:
            if start not in self._running and self.settings is not None:
                self._running[start] = start(self, self.settings)
            return self._running.get(start)

    @property
    def running(self) -> tuple[Running, ...]:
        """All that goes on between cycles."""
        return tuple(self._running.values())

    def stop(self) -> None:
        """End all that goes on between cycles."""
        with self._starting:
            self.settings = None
        for one in self.running:
            one.stop()

    def window(self, summary: ScorerSummary) -> Window:
        """The window of the scorer's source."""
        identity = (summary.source_type, summary.source_endpoint, summary.source_query)
        self.tidy()
        with self._lock:
            key = (summary.name, summary.source_name)
            kept = self._windows.get(key)
            if kept is None or kept.identity != identity:
                if kept is not None:
                    kept.window.clear()
                kept = self._windows[key] = _Kept(identity, Window(self.budget))
            return kept.window

    def make_room(self) -> bool:
        """Empty the largest window if it has more than its share of the series; says whether that was so.

        For a scorer that finds no room: one that takes all of it must not stop the others.
        """
        with self._lock:
            owner, largest = max(
                ((owner, kept.window) for owner, kept in self._windows.items()),
                key=lambda found: len(found[1]),
                default=(None, None),
            )
            if owner is None or largest is None or len(largest) <= self.budget.max_series // len(self._windows):
                return False
            log.warning(
                "a scorer's samples are dropped, for it holds more than its share and another one finds no room; raise "
                "DSF_AGENT_WINDOW_SERIES or DSF_AGENT_WINDOW_SAMPLES, or select fewer series",
                scorer=owner[0],
                series=len(largest),
            )
            largest.clear()
            return True

    def count(self, object_values: Counter[str]) -> None:
        """Add to what became of fields of objects."""
        with self._lock:
            self.object_values.update(object_values)

    def knows(self, scorer: str) -> bool:
        """Whether the scorer's summary is still in force."""
        return scorer in self.summaries()

    def tidy(self) -> None:
        """Drop what belongs to scorers and sources that are gone, and what was pushed and is too old by now."""
        present = self.summaries()
        with self._lock:
            known = {(name, source.source_name) for name, one in present.items() for source in one.each_source}
            for key in self._windows.keys() - known:
                self._windows.pop(key).window.clear()
        for one in self.running:
            one.tidy()


def window_of(summary: ScorerSummary, held: Held | None) -> Window:
    """Where the samples of a scorer go. One that asks for the present only, and `dsf explain`, gets a
    window for this once, which the limit on the bytes of an answer bounds.
    """
    if held is None or not summary.source_step:
        return Window(Budget(sys.maxsize, sys.maxsize))
    return held.window(summary)


def own_cluster(held: Held | None, source: str) -> tuple[Held, ClusterView]:
    """The agent's own cluster, for a source that is nothing else. Raises HttpError where the agent has none."""
    if held is None or held.cluster is None:
        raise HttpError(
            "unsupported_source",
            f"the source {source} is the agent's own cluster: it needs an agent that runs with DSF_AGENT_KUBE=true",
        )
    return held, held.cluster


def keep(
    window: Window, samples: Mapping[Hashable, tuple[Mapping[str, str], float, float]], now: float, held: Held | None
) -> None:
    """`Window.update`; when there is no room, a scorer that has more than its share gives way.

    Raises WindowFullError and ValueError.
    """
    try:
        window.update(samples, now)
    except WindowFullError:
        if held is None or not held.make_room():
            raise
        try:
            window.update(samples, now)
        except WindowFullError:
            # What it took itself although all of it did not fit.
            held.make_room()
            raise


def grid_of(summary: ScorerSummary, now: float) -> Grid:
    """The points in time that the scorer asks for; without a step only `now`."""
    length = summary.source_range if summary.source_step else 0
    return Grid(int(now), length, summary.source_step, lookback_of(summary.scoring_interval))


def retention(summary: ScorerSummary) -> float:
    """Seconds for which the scorer needs a sample."""
    grid = grid_of(summary, 0.0)
    return grid.length + grid.lookback


def lookback_of(interval: float) -> float:
    """Seconds for which a sample counts, where cycles are so many seconds apart: until the next but one is due."""
    return max(LOOKBACK, 2.0 * interval)
