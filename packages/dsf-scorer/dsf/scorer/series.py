"""A time series: its labels, and its samples as numpy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat

import numpy as np

from dsf.scorer.result import Score, Skipped, copy_valid_labels

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

#: Maximum points of an even grid. Times come from a request and may be centuries apart.
_MAX_POINTS = 1_000_000


class Gap(NamedTuple):
    """A gap between two samples in which samples are missing. Times are unix seconds."""

    #: Time of the last sample before the gap.
    start: float
    #: Time of the first sample after it.
    end: float
    #: Number of missing samples.
    missing: int


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One time series. The arrays are float64, of equal length and may be modified; the order is that of the request,
    ascending in time from Prometheus."""

    labels: dict[str, str]
    #: Unix seconds; always finite.
    times: NDArray[np.float64]
    #: NaN where Prometheus wrote NaN, +Inf or -Inf.
    values: NDArray[np.float64]

    @classmethod
    def of(
        cls, labels: Mapping[str, str], values: Iterable[float], *, start: float = 0.0, step: float = 60.0
    ) -> Series:
        """Return a series with a sample every `step` seconds from `start` on, for tests and examples."""
        array = np.array(list(values), dtype=np.float64)
        array[~np.isfinite(array)] = np.nan
        return cls(copy_valid_labels(labels), start + step * np.arange(array.size, dtype=np.float64), array)

    @property
    def is_empty(self) -> bool:
        """True if there are no samples."""
        return self.values.size == 0

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self.values.size)

    def finite(self) -> Series:
        """Return the series without NaN samples; it may be empty."""
        is_finite = np.isfinite(self.values)
        return self if is_finite.all() else Series(self.labels, self.times[is_finite], self.values[is_finite])

    def gaps(self, step: float) -> list[Gap]:
        """Return where samples are missing from a series that should have a sample every `step` seconds.

        A NaN sample is not missing; `finite().gaps(step)` counts NaN samples as missing too.
        Raises ValueError when `step` is not positive.
        """
        _check_step(step)
        times = np.sort(self.times)
        distances = np.diff(times)
        return [
            Gap(float(times[index]), float(times[index + 1]), max(1, round(float(distances[index]) / step) - 1))
            # Scrapes are a little early or late. A distance of more than one and a half steps means a missing sample.
            for index in np.flatnonzero(distances > 1.5 * step)
        ]

    def regular(self, step: float) -> Series:
        """Return the series on an even grid of `step` seconds from its first to its last sample, with NaN for gaps.

        Each sample moves to the nearest grid point; of two samples at one point the later sample is used. Raises
        ValueError when `step` is not positive, or so small that the grid would have more than a million points.
        """
        _check_step(step)
        if self.is_empty:
            return self
        order = np.argsort(self.times, kind="stable")
        times, values = self.times[order], self.values[order]
        span = (times[-1] - times[0]) / step
        if span >= _MAX_POINTS:
            msg = (
                f"a grid of {step:g} s between {times[0]:g} and {times[-1]:g} would have more than {_MAX_POINTS} points"
            )
            raise ValueError(msg)
        points = np.rint((times - times[0]) / step).astype(np.intp)
        grid = np.full(int(points[-1]) + 1, np.nan)
        grid[points] = values
        return Series(self.labels, times[0] + step * np.arange(grid.size, dtype=np.float64), grid)

    def frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame with the column `value` and the index `time` (UTC).

        Raises ImportError, which says what to install, when there is no pandas.
        """
        pandas = _import_pandas()
        index = pandas.to_datetime(self.times, unit="s", utc=True).rename("time")
        frame: pd.DataFrame = pandas.DataFrame({"value": self.values}, index=index)
        return frame

    def score(self, value: SupportsFloat, **labels: str) -> Score:
        """Return a score with the labels of this series and `labels`, which replace labels of the same name."""
        return Score(value, {**self.labels, **labels})

    def skip(self, reason: str) -> Skipped:
        """Return the result of a series without a score, counted by `reason`: one of a few snake_case words."""
        return Skipped(reason)


def to_frame(series: Sequence[Series]) -> pd.DataFrame:
    """Return all series in one pandas DataFrame: a column per label, `time` (UTC) and `value`; one row per sample.

    A label that a series does not have is empty. Labels named `time` or `value` are hidden by the columns of that name.
    Raises ImportError, which says what to install, when there is no pandas.
    """
    pandas = _import_pandas()
    lengths = [len(item) for item in series]
    label_names = sorted({name for item in series for name in item.labels})
    columns: dict[str, Any] = {
        name: np.repeat(np.array([item.labels.get(name, "") for item in series], dtype=object), lengths)
        for name in label_names
    }
    no_values = np.empty(0, dtype=np.float64)
    times = np.concatenate([no_values, *(item.times for item in series)])
    columns["time"] = pandas.to_datetime(times, unit="s", utc=True)
    columns["value"] = np.concatenate([no_values, *(item.values for item in series)])
    frame: pd.DataFrame = pandas.DataFrame(columns)
    return frame


def _import_pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError("a frame needs pandas: pip install pandas", name="pandas") from None
    return pandas


def _check_step(step: float) -> None:
    if not step > 0:
        msg = f"step must be more than 0 seconds, not {step!r}"
        raise ValueError(msg)
