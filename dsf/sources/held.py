"""State that an agent keeps between cycles, for sources without history. One per process."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from prometheus_client import Metric

import dsf.log
from dsf.api.summary import ScorerSummary
from dsf.errors import HttpError
from dsf.settings import Settings
from dsf.sources.cluster import ClusterView
from dsf.sources.window import LOOKBACK, MAX_LABEL_BYTES, Budget, Grid, Window, WindowFullError

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


class _Holder(NamedTuple):
    """Who may have to give way."""

    name: str
    window: Window
    #: How many scorers it is for.
    scorers: int = 1


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
        #: Windows that several scorers share, and how many those are.
        self._shared: list[tuple[Window, Callable[[], int]]] = []
        #: By the same names, how many series were left out in the last cycle.
        self._left_out: dict[tuple[str, str | None], int] = {}
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

    def share(self, window: Window, scorers: Callable[[], int]) -> None:
        """Let this window give way as well; `scorers` says how many it is for."""
        with self._lock:
            self._shared.append((window, scorers))

    def make_room(self, full: WindowFullError) -> bool:
        """Empty the window with most of what ran out if that is more than its share; says whether that was so.

        For a scorer that finds no room: one that takes all of it must not stop the others.
        """

        def taken(holder: _Holder) -> float:
            return (len(holder.window) if full.of_series else holder.window.samples) / holder.scorers

        with self._lock:
            holders = [_Holder(name, kept.window) for (name, _), kept in self._windows.items()]
            holders += [_Holder("(pushed)", window, count) for window, scorers in self._shared if (count := scorers())]
            largest = max(holders, key=taken, default=None)
            limit = self.budget.max_series if full.of_series else self.budget.max_samples
            if largest is None or taken(largest) <= limit / sum(holder.scorers for holder in holders):
                return False
            log.warning(
                "a scorer's samples are dropped, for it holds more than its share and another one finds no room; raise "
                "DSF_AGENT_WINDOW_SERIES or DSF_AGENT_WINDOW_SAMPLES, or select fewer series",
                scorer=largest.name,
                series=len(largest.window),
                samples=largest.window.samples,
            )
            largest.window.clear()
            return True

    def leave_out(self, summary: ScorerSummary, series: int) -> None:
        """Log that so many series are left out, when it was not as many in the cycle before."""
        key = (summary.name, summary.source_name)
        with self._lock:
            if series == self._left_out.get(key, 0):
                return
            self._left_out[key] = series
        if series:
            log.warning(
                "series are left out, for their labels are too long; select others, or let the source have fewer",
                scorer=summary.name,
                series=series,
                most_bytes=MAX_LABEL_BYTES,
            )

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
            for key in self._left_out.keys() - known:
                del self._left_out[key]
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
    window: Window,
    samples: Mapping[Hashable, tuple[Mapping[str, str], float, float]],
    now: float,
    held: Held | None,
    summary: ScorerSummary,
) -> int:
    """`Window.update` for this scorer; when there is no room, one that has more than its share gives way.

    Raises WindowFullError.
    """
    try:
        left_out = window.update(samples, now)
    except WindowFullError as full:
        if held is None or not held.make_room(full):
            raise
        try:
            left_out = window.update(samples, now)
        except WindowFullError as again:
            # What it took itself although all of it did not fit.
            held.make_room(again)
            raise
    if held is not None:
        held.leave_out(summary, left_out)
    return left_out


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
