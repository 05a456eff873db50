"""What an agent keeps between cycles, for sources that only tell the present. One per process."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

from dsf.api.summary import ScorerSummary
from dsf.errors import HttpError
from dsf.sources.cluster import ClusterView
from dsf.sources.window import LOOKBACK, Budget, Grid, Window, WindowFullError


class Pushed(Protocol):
    """What collectors pushed to this agent (`dsf.sources.otlp`)."""

    window: Window
    #: What became of a point -> number of points.
    counts: Counter[str]

    def tidy(self) -> None:
        """Drop what is too old, or what no scorer asks for any more."""


@dataclass(slots=True)
class _Kept:
    """The window of one scorer, and what it is of: another source or query begins a new one."""

    identity: tuple[str, str, str]
    window: Window


class Held:
    """Windows of scorers, the OTLP receiver's samples, and the view of the cluster. Thread-safe."""

    def __init__(self, budget: Budget, summaries: Callable[[], Mapping[str, ScorerSummary]]) -> None:
        """`summaries` are those in force, by the scorer's name."""
        self.budget = budget
        #: None: no receiver runs in this agent.
        self.received: Pushed | None = None
        #: None: the agent does not run on Kubernetes.
        self.cluster: ClusterView | None = None
        #: What became of fields that were read from objects -> how many.
        self.object_values: Counter[str] = Counter()
        self._summaries = summaries
        #: By the names of scorer and source.
        self._windows: dict[tuple[str, str | None], _Kept] = {}
        self._lock = threading.Lock()

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
            largest = max((kept.window for kept in self._windows.values()), key=len, default=None)
            if largest is None or len(largest) <= self.budget.max_series // len(self._windows):
                return False
            largest.clear()
            return True

    def count(self, object_values: Counter[str]) -> None:
        """Add to what became of fields of objects."""
        with self._lock:
            self.object_values.update(object_values)

    def knows(self, scorer: str) -> bool:
        """Whether the scorer's summary is still in force."""
        return scorer in self._summaries()

    def tidy(self) -> None:
        """Drop what belongs to scorers and sources that are gone, and what was pushed and is too old by now."""
        present = self._summaries()
        with self._lock:
            known = {(name, source.source_name) for name, one in present.items() for source in one.each_source}
            for key in self._windows.keys() - known:
                self._windows.pop(key).window.clear()
        if self.received is not None:
            self.received.tidy()


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
    """The points in time that the scorer asks for; without a step only `now`.

    With cycles far apart a sample counts until the next but one is due.
    """
    lookback = max(LOOKBACK, 2.0 * summary.scoring_interval)
    return Grid(int(now), summary.source_range if summary.source_step else 0, summary.source_step, lookback)


def retention(summary: ScorerSummary) -> float:
    """Seconds for which the scorer needs a sample."""
    grid = grid_of(summary, 0.0)
    return grid.length + grid.lookback
