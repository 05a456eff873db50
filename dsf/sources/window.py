"""Samples of the recent past, for sources without history.

Each series has two arrays of float64, so a sample is 16 bytes. All windows of an agent share one budget of series and
samples; what would exceed it is refused with words, never dropped silently.
"""

from __future__ import annotations

import bisect
import functools
import json
import math
import threading
from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field

#: Seconds for which a sample counts when no newer one came; that of Prometheus.
LOOKBACK = 300.0
#: Seconds that the clock of who says a sample's time may be ahead.
AHEAD = 300.0
#: Most steps of a range, which has one point more; that of Prometheus.
MAX_POINTS = 11_000
#: Bytes that the labels of one series may have.
MAX_LABEL_BYTES = 4096
#: Samples that may stay although they are too old, before an array is moved.
_SLACK = 16


class WindowFullError(Exception):
    """The budget is used up; the message says by what it is set."""

    def __init__(self, message: str, *, of_series: bool) -> None:
        super().__init__(message)
        #: Whether series ran out, and not samples.
        self.of_series = of_series


class OutdatedSampleError(Exception):
    """The sample is older than one that the series has already."""


@dataclass(slots=True)
class Budget:
    """What all windows of an agent may hold together. Thread-safe."""

    max_series: int
    max_samples: int
    series: int = 0
    samples: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take(self, series: int, samples: int) -> None:
        """Count more. Raises WindowFullError, and then nothing is counted."""
        with self._lock:
            if series and self.series + series > self.max_series:
                raise WindowFullError(
                    f"this agent holds {self.max_series} series already (DSF_AGENT_WINDOW_SERIES); select fewer",
                    of_series=True,
                )
            if self.samples + samples > self.max_samples:
                raise WindowFullError(
                    f"this agent holds {self.max_samples} samples already (DSF_AGENT_WINDOW_SAMPLES); select fewer "
                    "series, or ask for a shorter range",
                    of_series=False,
                )
            self.series += series
            self.samples += samples

    def give(self, series: int, samples: int) -> None:
        """Count less."""
        with self._lock:
            self.series -= series
            self.samples -= samples


@dataclass(frozen=True, slots=True)
class Grid:
    """The points in time of an answer, in unix seconds: `end` and every `step` before it within `length`."""

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


class Series:
    """The samples of one series, ascending in time."""

    __slots__ = ("head", "labels", "stale", "times", "values")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self.labels = dict(labels)
        text = json.dumps(self.labels, separators=(",", ":"))
        if len(text) > MAX_LABEL_BYTES:
            msg = f"the labels of a series have more than {MAX_LABEL_BYTES} bytes"
            raise ValueError(msg)
        self.head = f'{{"metric":{text},"values":['.encode()
        self.times = array("d")
        self.values = array("d")
        #: Times of entries that only say that the series ended there.
        self.stale: set[float] = set()

    def points(self, grid: Grid) -> Iterator[tuple[int, float]]:
        """(unix seconds, value) for each point in time at which the series had a value.

        Points are whole seconds, and one shows what was measured until that second was over: else the newest sample
        would be missing until the next second begins.
        """
        times, values = self.times, self.values
        last = len(times) - 1
        moments = grid.times
        index = bisect.bisect_left(times, moments.start + 1) - 1
        for moment in moments:
            while index < last and times[index + 1] < moment + 1:
                index += 1
            if index >= 0 and moment - times[index] <= grid.lookback and times[index] not in self.stale:
                yield moment, values[index]


class Window:
    """Series by a key of the caller's. Thread-safe."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._series: dict[Hashable, Series] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many series there are."""
        return len(self._series)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._series

    @property
    def samples(self) -> int:
        """How many samples there are, of all series together."""
        with self._lock:
            return sum(len(series.times) for series in self._series.values())

    def add(self, key: Hashable, labels: Callable[[], Mapping[str, str]], time: float, value: float | None) -> None:
        """A sample of the series `key`; `labels` is asked for a new one. No value: the series ends there.

        A sample of the time of the newest one is taken for that very sample, sent again. Raises OutdatedSampleError,
        WindowFullError, and ValueError for labels that are too long.
        """
        with self._lock:
            self._add(key, labels, time, value)

    def update(self, samples: Mapping[Hashable, tuple[Mapping[str, str], float, float]], now: float) -> int:
        """All that there is at `now`: (labels, time, value) by key. Series that are not among them end.

        Says how many were left out, for their labels are too long. Raises WindowFullError.
        """
        left_out = 0
        with self._lock:
            self._forget_ahead(now)
            for key in self._series.keys() - samples.keys():
                self._end(key, now)
            for key, (labels, time, value) in samples.items():
                series = self._series.get(key)
                at = time
                if series is not None and time <= (newest := series.times[-1]):
                    if newest not in series.stale:
                        continue
                    if newest >= now:
                        # The first try of this cycle failed, and this one did not.
                        series.stale.discard(newest)
                        series.values[-1] = value
                        continue
                    # It is of a time before the end, and still shown after it.
                    at = now
                try:
                    self._add(key, functools.partial(dict, labels), at, value)
                except ValueError:
                    left_out += 1
        return left_out

    def end_all(self, now: float) -> None:
        """Nothing is known of any series from `now` on."""
        with self._lock:
            self._forget_ahead(now)
            for key in self._series:
                self._end(key, now)

    def forget(self, before: Callable[[Mapping[str, str]], float]) -> None:
        """Drop samples that are older than what `before` says of the labels of their series, and empty series."""
        with self._lock:
            for key, series in list(self._series.items()):
                limit = before(series.labels)
                old = bisect.bisect_left(series.times, limit)
                if old == len(series.times):
                    del self._series[key]
                    self._budget.give(1, old)
                elif old > max(_SLACK, len(series.times) // 8):
                    series.stale.difference_update(series.times[:old])
                    del series.times[:old], series.values[:old]
                    self._budget.give(0, old)

    def forget_ahead(self, now: float) -> None:
        """Drop series whose newest sample is of a time to come: the clock was set back, and new ones were refused."""
        with self._lock:
            self._forget_ahead(now)

    def clear(self) -> None:
        """Drop everything."""
        self.forget(lambda _: math.inf)

    def matrix(
        self,
        wanted: Callable[[Mapping[str, str]], bool],
        grid: Grid,
        max_bytes: int,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[list[bytes], int]:
        """The series that are `wanted` as the inside of the array of a scoring request, and how many they are.

        Series without a value at any point are left out. Raises OverflowError when it is more than `max_bytes`, and
        what `check` raises, which is called for each series.
        """
        pieces: list[bytes] = []
        count = size = 0
        for series, points in self.selected(wanted, grid, check):
            text = ",".join(f'[{time},"{number(value)}"]' for time, value in points)
            piece = b"%s%s%s]}" % (b"," if pieces else b"", series.head, text.encode())
            size += len(piece)
            if size > max_bytes:
                raise OverflowError
            pieces.append(piece)
            count += 1
        return pieces, count

    def selected(
        self, wanted: Callable[[Mapping[str, str]], bool], grid: Grid, check: Callable[[], None]
    ) -> Iterator[tuple[Series, list[tuple[int, float]]]]:
        """The same series with their points."""
        with self._lock:
            held = list(self._series.values())
        for series in held:
            # Before it is asked: a regular expression may take long.
            check()
            if not wanted(series.labels):
                continue
            with self._lock:
                points = list(series.points(grid))
            if points:
                yield series, points

    def _add(self, key: Hashable, labels: Callable[[], Mapping[str, str]], time: float, value: float | None) -> None:
        series = self._series.get(key)
        if series is None:
            if value is None:
                return
            series = Series(labels())
            self._budget.take(1, 1)
            self._series[key] = series
        else:
            newest = series.times[-1]
            if time == newest:
                return
            if time < newest:
                raise OutdatedSampleError
            self._budget.take(0, 1)
        _append(series, time, value)

    def _forget_ahead(self, now: float) -> None:
        for key, series in list(self._series.items()):
            if series.times[-1] > now + AHEAD:
                del self._series[key]
                self._budget.give(1, len(series.times))

    def _end(self, key: Hashable, now: float) -> None:
        series = self._series[key]
        if series.times[-1] not in series.stale and series.times[-1] < now:
            # Counted without a limit: at most one such entry follows a sample.
            self._budget.give(0, -1)
            _append(series, now, None)


def _append(series: Series, time: float, value: float | None) -> None:
    if value is None:
        series.stale.add(time)
    series.times.append(time)
    series.values.append(0.0 if value is None else value)


def number(value: float) -> str:
    """The number as Prometheus writes it, shortest form: `1`, `0.25`, `NaN`, `+Inf`."""
    text = repr(value)
    if text.endswith(".0"):
        return text[:-2]
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(text, text)
