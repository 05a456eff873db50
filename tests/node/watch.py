"""Cycles of the sample scorer while something happens: in each window of time a pair misses one interval at most."""

from __future__ import annotations

import contextlib
import datetime
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.wait import wait_for

#: A cycle that ends like this was missed. A lost cycle is known a minute after it was due.
_MISSED = {"lost", "skipped", "error"}
#: Seconds until every cycle has an outcome: the deadline of the last one, and the time after which it is lost.
_JUDGED = 240


class Watch:
    """Windows of time, judged together at the end by the cycles that were due in them."""

    def __init__(self, history: Callable[[str], dict[str, Any]], clusters: tuple[str, ...]) -> None:
        self._history = history
        self._clusters = clusters
        self._windows: list[tuple[str, float, datetime.datetime, datetime.datetime]] = []
        #: (Cluster, run id) -> the newest that is known of that cycle: a history holds the last 50 only.
        self._cycles: dict[tuple[str, str], dict[str, Any]] = {}

    @contextlib.contextmanager
    def window(self, event: str, interval: float) -> Iterator[None]:
        """Check that no pair is without a cycle for longer than two intervals (in seconds) inside the block."""
        began = datetime.datetime.now(datetime.UTC)
        yield
        self._windows.append((event, interval, began, datetime.datetime.now(datetime.UTC)))
        self._count_open_cycles()
        for name in self._clusters:
            times = [began, *sorted(due for due, _ in self._iterate_due_times(name) if due > began)]
            gap = max((later - earlier).total_seconds() for earlier, later in itertools.pairwise(times))
            assert gap <= 2 * interval, f"{name}: {gap:.0f} s without a cycle, which is due every {interval} s: {times}"

    def judge(self) -> None:
        """Wait until every cycle has an outcome; raises AssertionError for a window in which a pair missed two.

        Cycles that were replaced by a retry, as when Prometheus returns later than the agent, count as one miss if they
        lie within an interval: a person may ask for a cycle every second.
        """
        wait_for(lambda: not self._count_open_cycles(), _JUDGED, "every cycle to have an outcome", interval=2)
        problems = []
        for event, interval, began, end in self._windows:
            for name in self._clusters:
                missed = {
                    due: cycle
                    for due, cycle in self._iterate_due_times(name)
                    if began <= due <= end and cycle["outcome"] in _MISSED
                }
                missed_cycles = [cycle for cycle in missed.values() if cycle["reason"] != "overlap"]
                # Due times are rounded to milliseconds.
                is_long = bool(missed) and (max(missed) - min(missed)).total_seconds() > 0.9 * interval
                if is_long or len(missed_cycles) > 1:
                    problems.append(f"{event}: {name} missed {[*missed.values()]}")
        assert not problems, "\n".join(problems)

    def _count_open_cycles(self) -> int:
        """Read the histories; returns the number of cycles that have no outcome yet."""
        waiting = 0
        for name in self._clusters:
            history = self._history(name)
            waiting += history["books"]["open"]
            self._cycles |= {(name, cycle["runId"]): cycle for cycle in history["cycles"]}
        return waiting

    def _iterate_due_times(self, cluster: str) -> Iterator[tuple[datetime.datetime, dict[str, Any]]]:
        for (name, _), cycle in self._cycles.items():
            if name == cluster:
                yield datetime.datetime.fromisoformat(cycle["at"]), cycle
