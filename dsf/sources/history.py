"""What a source that knows only the present said in the cycles before, for the time range that a scorer asks for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from types import TracebackType

from dsf.api.summary import ScorerSummary
from dsf.errors import HttpError
from dsf.sources.base import Series
from dsf.sources.memory import SourceMemory, grid_of, keep, retention, window_of
from dsf.sources.window import MAX_POINTS, Grid, WindowFullError

#: Key of a series -> its labels, the time in unix seconds, and the value.
Samples = Mapping[Hashable, tuple[Mapping[str, str], float, float]]


class History:
    """The context is the cycle's question to the source. If it fails, its series end: the next cycles show a gap."""

    def __init__(self, summary: ScorerSummary, memory: SourceMemory | None, now: float) -> None:
        """Raises HttpError for a range of too many points."""
        self.grid = checked(grid_of(summary, now))
        self.window = window_of(summary, memory)
        self._summary, self._memory = summary, memory
        #: The end of the range.
        self.now = float(self.grid.end)

    def __enter__(self) -> History:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self.window.end_all(self.now)

    def keep(self, samples: Samples) -> int:
        """Keep what the source says now; series that it does not name end. Returns how many had too long labels.

        Raises HttpError (too_large) without room.
        """
        self.window.forget(lambda _: self.now - retention(self._summary))
        try:
            return keep(self.window, samples, self.now, self._memory, self._summary)
        except WindowFullError as error:
            raise HttpError("too_large", str(error)) from None

    def series(self, wanted: Callable[[Mapping[str, str]], bool], check: Callable[[], None]) -> Iterator[Series]:
        """The series with `wanted` labels, in the range. `check` is called for each and may raise."""
        for series, points in self.window.selected(wanted, self.grid, check):
            yield Series(series.labels, points)


def checked(grid: Grid) -> Grid:
    """The grid itself. Raises HttpError when it has too many points."""
    # The first one is not counted, as in Prometheus.
    if len(grid.times) - 1 > MAX_POINTS:
        raise HttpError(
            "bad_query", f"range {grid.length} s with step {grid.step} s is more than {MAX_POINTS} points per series"
        )
    return grid
