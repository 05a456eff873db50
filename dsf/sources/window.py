"""Recent samples, for sources without history.

A sample takes 16 bytes, because each series has two arrays of float64. All windows of an agent share one budget of
series, samples, and bytes of labels. Data beyond it is refused with an error, never dropped silently.
"""

from __future__ import annotations

import bisect
import functools
import json
import math
import sys
import threading
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

#: Seconds for which a sample counts without a newer one, as in Prometheus.
LOOKBACK = 300.0
#: Seconds by which a sender's clock may be ahead.
MAX_FUTURE_SECONDS = 300.0
#: Maximum steps of a range (one less than points), as in Prometheus.
MAX_POINTS = 11_000
#: Maximum bytes of the labels of one series.
MAX_LABEL_BYTES = 4096
#: Memory in bytes of the labels of a series, and of its key, on average. Usual series take half of it. Labels of
#: `MAX_LABEL_BYTES` may take 60 KB, if there are many of them.
_LABEL_MEMORY: Final = 8192

#: The quantities that a budget limits.
Resource = Literal["series", "samples", "bytes"]

#: Encodes JSON without blanks. `json.dumps` would create an encoder per series.
compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class WindowFullError(Exception):
    """The budget is exhausted. The message names the setting."""

    def __init__(self, message: str, resource: Resource) -> None:
        super().__init__(f"{message} already (DSF_AGENT_WINDOW_SERIES); select fewer series")
        #: The exhausted part of the budget.
        self.resource: Resource = resource


class OutdatedSampleError(Exception):
    """The sample is older than the newest of its series."""


@dataclass(frozen=True, slots=True)
class Series:
    """A time series."""

    labels: Mapping[str, str]
    #: (unix seconds, value), ascending in time.
    samples: Iterable[tuple[float, float]]


@dataclass(slots=True)
class WindowBudget:
    """Limits for all windows of an agent together, and the used quantities. Thread-safe."""

    max_series: int
    max_samples: int
    series: int = 0
    samples: int = 0
    bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def max_bytes(self) -> int:
        """Maximum memory of all labels and keys."""
        return self.max_series * _LABEL_MEMORY

    def reserve(self, series: int, samples: int, size: int = 0) -> None:
        """Reserve series, samples, and `size` bytes for labels. Raises WindowFullError, and then reserves nothing."""
        with self._lock:
            if series and self.series + series > self.max_series:
                raise WindowFullError(f"this agent holds {self.max_series} series", "series")
            if size and self.bytes + size > self.max_bytes:
                raise WindowFullError(f"this agent holds labels of {self.max_bytes} bytes", "bytes")
            if self.samples + samples > self.max_samples:
                raise WindowFullError(f"this agent holds {self.max_samples} samples", "samples")
            self.series += series
            self.samples += samples
            self.bytes += size

    def release(self, series: int, samples: int, size: int = 0) -> None:
        """Release series, samples, and bytes of labels."""
        with self._lock:
            self.series -= series
            self.samples -= samples
            self.bytes -= size


def compute_window_budget(series: int) -> WindowBudget:
    """Return the budget of an agent for `series` series."""
    # A series may have 100 samples on average, which are 50 minutes with one sample every 30 s.
    return WindowBudget(series, series * 100)


@dataclass(frozen=True, slots=True)
class Grid:
    """The points in time of a response, in unix seconds: `end` and every `step` before it within `length`."""

    end: int
    length: int
    step: int
    #: Seconds for which a sample counts.
    lookback: float = LOOKBACK

    @property
    def times(self) -> range:
        """All points, ascending."""
        step = self.step or 1
        return range(self.end - self.length // step * step if self.step else self.end, self.end + 1, step)


class WindowSeries:
    """The samples of one series, ascending in time."""

    __slots__ = ("end_times", "labels", "size", "times", "values")

    def __init__(self, key: Hashable, labels: Mapping[str, str]) -> None:
        self.labels = dict(labels)
        #: Memory of the key and of the labels in bytes.
        self.size = measure_memory((key, self.labels))
        # "surrogatepass" also counts lone surrogates, which JSON escapes can produce.
        if len(compact(self.labels).encode(errors="surrogatepass")) > MAX_LABEL_BYTES:
            msg = f"the labels of a series have more than {MAX_LABEL_BYTES} bytes"
            raise ValueError(msg)
        self.times = array("d")
        self.values = array("d")
        #: Times of entries that mark an end of the series.
        self.end_times: set[float] = set()

    def yield_points(self, grid: Grid) -> Iterator[tuple[int, float]]:
        """Yield (unix seconds, value) for each point in time at which the series had a value.

        Points are whole seconds. A point includes the samples within its second, so that the newest sample is not
        missing until the next second begins.
        """
        times, values = self.times, self.values
        last_index = len(times) - 1
        moments = grid.times
        index = bisect.bisect_left(times, moments.start + 1) - 1
        for moment in moments:
            while index < last_index and times[index + 1] < moment + 1:
                index += 1
            if index >= 0 and moment - times[index] <= grid.lookback and times[index] not in self.end_times:
                yield moment, values[index]


class Window:
    """Series by a key that the caller chooses. Thread-safe."""

    def __init__(self, budget: WindowBudget) -> None:
        self._budget = budget
        self._series: dict[Hashable, WindowSeries] = {}
        #: Unix seconds of the first cycle, to which grids with steps longer than the interval are aligned.
        self.first_cycle_at: int | None = None
        # Reentrant, because `update` calls `add`.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self._series)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._series

    def count(self, resource: Resource) -> int:
        """Return how much of a budget this window uses."""
        with self._lock:
            if resource == "series":
                return len(self._series)
            return sum(series.size if resource == "bytes" else len(series.times) for series in self._series.values())

    @property
    def samples(self) -> int:
        """Total number of samples."""
        return self.count("samples")

    def add(self, key: Hashable, labels: Callable[[], Mapping[str, str]], time: float, value: float | None) -> None:
        """Add a sample to the series `key`. A value of None ends the series. `labels` is called for a new series.

        A sample with the time of the newest one is ignored as a duplicate. Raises OutdatedSampleError, WindowFullError,
        and ValueError for labels that are too long.
        """
        with self._lock:
            series = self._series.get(key)
            if series is None:
                if value is None:
                    return
                # Reserve before the labels are read, because a large request must fail fast if there is no room.
                self._budget.reserve(1, 1)
                try:
                    series = WindowSeries(key, labels())
                    self._budget.reserve(0, 0, series.size)
                except BaseException:
                    self._budget.release(1, 1)
                    raise
                self._series[key] = series
            else:
                newest_time = series.times[-1]
                if time == newest_time:
                    return
                if time < newest_time:
                    raise OutdatedSampleError
                self._budget.reserve(0, 1)
            _append(series, time, value)

    def update(self, samples: Mapping[Hashable, tuple[Mapping[str, str], float, float]], now: float) -> int:
        """Set all current samples: (labels, time, value) by key. Series without a sample end at `now`.

        Returns the number of samples omitted because of too long labels. Raises WindowFullError.
        """
        omitted_count = 0
        with self._lock:
            self._drop_future_samples(now)
            for key in self._series.keys() - samples.keys():
                self._end(key, now)
            for key, (labels, time, value) in samples.items():
                series = self._series.get(key)
                at = time
                if series is not None and time <= (newest_time := series.times[-1]):
                    if newest_time not in series.end_times:
                        continue
                    if newest_time >= now:
                        # A retry succeeded after a failure in the same cycle.
                        series.end_times.discard(newest_time)
                        series.values[-1] = value
                        continue
                    # The sample is older than the end of the series, but the source still exposes it.
                    at = now
                try:
                    self.add(key, functools.partial(dict, labels), at, value)
                except ValueError:
                    omitted_count += 1
        return omitted_count

    def end_all(self, now: float) -> None:
        """End all series at `now`, because their values are unknown."""
        with self._lock:
            self._drop_future_samples(now)
            for key in self._series:
                self._end(key, now)

    def forget(self, compute_limit: Callable[[Mapping[str, str]], float]) -> None:
        """Drop samples before the time that `compute_limit` returns for their series' labels, and drop empty series."""
        with self._lock:
            for key, series in list(self._series.items()):
                limit = compute_limit(series.labels)
                outdated_count = bisect.bisect_left(series.times, limit)
                if outdated_count == len(series.times):
                    del self._series[key]
                    self._budget.release(1, outdated_count, series.size)
                elif outdated_count > max(16, len(series.times) // 8):
                    series.end_times.difference_update(series.times[:outdated_count])
                    del series.times[:outdated_count], series.values[:outdated_count]
                    self._budget.release(0, outdated_count)

    def drop_future_series(self, now: float) -> None:
        """Drop series whose newest sample is in the future: after the clock was set back, they refuse new samples."""
        with self._lock:
            for key, series in list(self._series.items()):
                if series.times[-1] > now + MAX_FUTURE_SECONDS:
                    del self._series[key]
                    self._budget.release(1, len(series.times), series.size)

    def clear(self) -> None:
        """Drop everything."""
        self.forget(lambda _: math.inf)

    def select_series(
        self, selects: Callable[[Mapping[str, str]], bool], grid: Grid, check: Callable[[], None]
    ) -> Iterator[tuple[WindowSeries, list[tuple[int, float]]]]:
        """Yield the series that `selects` accepts, with their points in time. Series without values are skipped.

        `check` is called for each series, and may raise.
        """
        with self._lock:
            all_series = list(self._series.values())
        for series in all_series:
            # Check before the match, because a regular expression may take long.
            check()
            if not selects(series.labels):
                continue
            with self._lock:
                points = list(series.yield_points(grid))
            if points:
                yield series, points

    def _drop_future_samples(self, now: float) -> None:
        """Drop samples in the future, which this agent recorded before its clock was set back."""
        for key, series in list(self._series.items()):
            if series.times[-1] <= now:
                continue
            first_future_index = bisect.bisect_right(series.times, now)
            self._budget.release(
                int(not first_future_index),
                len(series.times) - first_future_index,
                0 if first_future_index else series.size,
            )
            series.end_times.difference_update(series.times[first_future_index:])
            del series.times[first_future_index:], series.values[first_future_index:]
            if not first_future_index:
                del self._series[key]

    def _end(self, key: Hashable, now: float) -> None:
        series = self._series[key]
        newest_time = series.times[-1]
        if newest_time in series.end_times:
            return
        if newest_time >= now:
            # An update that failed has already added a sample.
            series.end_times.add(newest_time)
            return
        # No limit applies, because at most one such entry follows a sample.
        self._budget.release(0, -1)
        _append(series, now, None)


def _append(series: WindowSeries, time: float, value: float | None) -> None:
    if value is None:
        series.end_times.add(time)
    series.times.append(time)
    series.values.append(0.0 if value is None else value)


def measure_memory(value: object) -> int:
    """Return the bytes of nested tuples and mappings with their texts. Each object counts once."""
    objects: dict[int, object] = {}
    pending_objects = [value]
    while pending_objects:
        value = pending_objects.pop()
        if id(value) not in objects:
            objects[id(value)] = value
            if isinstance(value, dict):
                pending_objects += [*value, *value.values()]
            elif isinstance(value, tuple):
                pending_objects += value
    return sum(map(sys.getsizeof, objects.values()))


def format_number(value: float) -> str:
    """Return the number in Prometheus' shortest form: `1`, `0.25`, `NaN`, `+Inf`."""
    text = repr(value)
    if text.endswith(".0"):
        return text[:-2]
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(text, text)
