"""State that an agent keeps between cycles, for sources without history.

`History` records the current values that a source returns in each cycle.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import NamedTuple, Protocol

from prometheus_client import Metric
from prometheus_client.registry import Collector

import dsf.log
from dsf import metrics
from dsf.api.summary import ScorerSummary
from dsf.errors import HttpError
from dsf.settings import Settings
from dsf.sources.window import (
    LOOKBACK,
    MAX_LABEL_BYTES,
    MAX_POINTS,
    Grid,
    Series,
    Window,
    WindowBudget,
    WindowFullError,
)

log = dsf.log.get(__name__)


class BackgroundSource(Protocol):
    """Background activity of a source, such as a receiver."""

    def tidy(self) -> None:
        """Drop samples that are too old or no longer requested."""

    def families(self) -> Iterable[Metric]:
        """Return metrics for the agent's /metrics."""

    def stop(self) -> None:
        """End the activity."""


#: Starts the activity. Called once per agent.
Start = Callable[["SourceMemory", Settings], BackgroundSource]


@dataclass(slots=True)
class _ScorerWindow:
    """The window of one scorer. A different identity (source, query, access) starts a new window."""

    identity: tuple[object, ...]
    window: Window


class _EvictionCandidate(NamedTuple):
    """A window that may be emptied for the samples of another one."""

    name: str
    window: Window
    #: Number of scorers that share the window.
    scorers: int = 1


class SourceMemory(Collector):
    """The windows of scorers, and the background activities of sources. Thread-safe."""

    def __init__(self, budget: WindowBudget, summaries: Callable[[], Mapping[str, ScorerSummary]]) -> None:
        """`summaries` returns the current summaries by the scorer's name."""
        self.budget = budget
        #: Settings of the agent, or None outside of an agent, which disables background activities.
        self.settings: Settings | None = None
        self.summaries = summaries
        #: (scorer, source) -> window.
        self._windows: dict[tuple[str, str | None], _ScorerWindow] = {}
        #: Windows shared by several scorers, and their number.
        self._shared_windows: list[tuple[Window, Callable[[], int]]] = []
        #: (scorer, source) -> number of series omitted in the last cycle.
        self._omitted_counts: dict[tuple[str, str | None], int] = {}
        self._lock = threading.Lock()
        self._activities: dict[Start, BackgroundSource] = {}
        # Guards `_activities`. Held while an activity is started.
        self._start_lock = threading.Lock()

    def start_once(self, start: Start) -> BackgroundSource | None:
        """Return the result of `start`, which is called once. Return None outside of an agent. Raises its errors."""
        with self._start_lock:
            if start not in self._activities and self.settings is not None:
                self._activities[start] = start(self, self.settings)
            return self._activities.get(start)

    @property
    def running(self) -> tuple[BackgroundSource, ...]:
        """All background activities."""
        return tuple(self._activities.values())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of stored data and of the sources."""
        self.tidy()
        for metric, number in (
            (metrics.WINDOW_SERIES, self.budget.series),
            (metrics.WINDOW_SAMPLES, self.budget.samples),
        ):
            family = metric.make_gauge()
            family.add_metric((), number)
            yield family
        for activity in self.running:
            yield from activity.families()

    def stop(self) -> None:
        """End all background activities."""
        with self._start_lock:
            self.settings = None
        for activity in self.running:
            activity.stop()

    def get_window(self, summary: ScorerSummary) -> Window:
        """Return the window of the scorer's source."""
        # Access and options also select data. A header may name a tenant, for example.
        identity = (
            *(summary.source_type, summary.source_endpoint, summary.source_query),
            *(summary.source_access, summary.source_options),
        )
        self.tidy()
        with self._lock:
            key = (summary.name, summary.source_name)
            scorer_window = self._windows.get(key)
            if scorer_window is None or scorer_window.identity != identity:
                if scorer_window is not None:
                    scorer_window.window.clear()
                scorer_window = self._windows[key] = _ScorerWindow(identity, Window(self.budget))
            return scorer_window.window

    def add_shared_window(self, window: Window, scorers: Callable[[], int]) -> None:
        """Register a window for eviction that several scorers share. `scorers` returns their number."""
        with self._lock:
            self._shared_windows.append((window, scorers))

    def evict_largest_window(self, error: WindowFullError) -> bool:
        """Empty the window that uses most of the exhausted budget, if that exceeds its share; return True if it did.

        The eviction prevents one scorer from using up the budget of the others.
        """

        def compute_used_share(candidate: _EvictionCandidate) -> float:
            return candidate.window.count(error.resource) / candidate.scorers

        with self._lock:
            candidates = [
                _EvictionCandidate(name, scorer_window.window) for (name, _), scorer_window in self._windows.items()
            ]
            candidates += [
                _EvictionCandidate("(pushed)", window, count)
                for window, scorers in self._shared_windows
                if (count := scorers())
            ]
            largest_window = max(candidates, key=compute_used_share, default=None)
            budget = self.budget
            limit = {"series": budget.max_series, "samples": budget.max_samples, "bytes": budget.max_bytes}[
                error.resource
            ]
            if largest_window is None or compute_used_share(largest_window) <= limit / sum(
                candidate.scorers for candidate in candidates
            ):
                return False
            log.warning(
                "a scorer's samples are dropped, because it exceeds its share and another scorer has no room; raise "
                "DSF_AGENT_WINDOW_SERIES, or select fewer series",
                scorer=largest_window.name,
                series=len(largest_window.window),
                samples=largest_window.window.samples,
            )
            largest_window.window.clear()
            return True

    def log_omitted_series(self, summary: ScorerSummary, series: int) -> None:
        """Log the number of omitted series, if it changed since the previous cycle."""
        key = (summary.name, summary.source_name)
        with self._lock:
            if series == self._omitted_counts.get(key, 0):
                return
            self._omitted_counts[key] = series
        if series:
            log.warning(
                "series are omitted, because their labels are too long; select others, or reduce the source's labels",
                scorer=summary.name,
                series=series,
                most_bytes=MAX_LABEL_BYTES,
            )

    def tidy(self) -> None:
        """Drop the windows of removed scorers and sources, and pushed samples that are too old."""
        summaries = self.summaries()
        with self._lock:
            present_keys = {
                (name, source.source_name) for name, summary in summaries.items() for source in summary.each_source
            }
            for key in self._windows.keys() - present_keys:
                self._windows.pop(key).window.clear()
            for key in self._omitted_counts.keys() - present_keys:
                del self._omitted_counts[key]
        for activity in self.running:
            activity.tidy()


def compute_grid(summary: ScorerSummary, now: float) -> Grid:
    """Return the points in time that the scorer requests, or only `now` without a step."""
    length = summary.source_range if summary.source_step else 0
    return Grid(int(now), length, summary.source_step, compute_lookback(summary.scoring_interval))


def align_grid(grid: Grid, window: Window, interval: int) -> Grid:
    """Align the grid of a source with one sample per cycle, so that all cycles within a step have the same points.

    A step longer than the interval omits samples. Without alignment each cycle would omit the samples that the previous
    one used. The first cycle defines the phase, so that its sample counts at once.
    """
    if window.first_cycle_at is None:
        window.first_cycle_at = grid.end
    if grid.step <= interval:
        return grid
    # Tolerate a cycle that begins one second early.
    return replace(grid, end=grid.end - ((grid.end + 1 - window.first_cycle_at) % grid.step) + 1)


def compute_retention(summary: ScorerSummary) -> float:
    """Return the seconds for which the scorer needs a sample."""
    grid = compute_grid(summary, 0.0)
    return grid.length + grid.lookback


def compute_lookback(interval: float) -> float:
    """Return the seconds for which a sample counts: two intervals between cycles, and at least LOOKBACK."""
    return max(LOOKBACK, 2.0 * interval)


#: Key of a series -> its labels, the time in unix seconds, and the value.
Samples = Mapping[Hashable, tuple[Mapping[str, str], float, float]]


class History:
    """The recorded values of a source without history, as a context manager around the cycle's query.

    If the query fails, the series end, so that later cycles see a gap.
    """

    def __init__(self, summary: ScorerSummary, memory: SourceMemory | None, now: float) -> None:
        """Raises HttpError for a range with too many points."""
        grid = check_grid(compute_grid(summary, now))
        # A scorer without a step, and `dsf explain`, get a temporary window, which the size of a response limits.
        if memory is None or not summary.source_step:
            self.window = Window(WindowBudget(sys.maxsize, sys.maxsize))
        else:
            self.window = memory.get_window(summary)
        self.grid = align_grid(grid, self.window, summary.scoring_interval)
        self._summary, self._memory = summary, memory
        #: Time of the cycle in unix seconds.
        self.now = float(grid.end)

    def __enter__(self) -> History:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self.window.end_all(self.now)

    @property
    def oldest(self) -> float:
        """Unix seconds before which the scorer needs no samples."""
        return self.now - compute_retention(self._summary)

    def keep(self, samples: Samples) -> int:
        """Record the current samples, and end series without one. Return the number of series with too long labels.

        Empties a window that exceeds its share if the memory is full. Raises HttpError (too_large) if no window does.
        """
        self.window.forget(lambda _: self.oldest)
        memory = self._memory
        try:
            try:
                omitted_count = self.window.update(samples, self.now)
            except WindowFullError as full:
                if memory is None or not memory.evict_largest_window(full):
                    raise
                omitted_count = self.window.update(samples, self.now)
        except WindowFullError as full:
            if memory is not None:
                # The window that was just filled may itself exceed its share.
                memory.evict_largest_window(full)
            raise HttpError("too_large", str(full)) from None
        if memory is not None:
            memory.log_omitted_series(self._summary, omitted_count)
        return omitted_count

    def series(self, selects: Callable[[Mapping[str, str]], bool], check: Callable[[], None]) -> Iterator[Series]:
        """Yield the series in the range whose labels `selects` accepts. `check` is called for each and may raise."""
        for series, points in self.window.select_series(selects, self.grid, check):
            yield Series(series.labels, points)


def check_grid(grid: Grid) -> Grid:
    """Return the grid. Raises HttpError if it has too many points."""
    # Prometheus does not count the first point.
    if len(grid.times) - 1 > MAX_POINTS:
        raise HttpError(
            "bad_query", f"range {grid.length} s with step {grid.step} s is more than {MAX_POINTS} points per series"
        )
    return grid
