"""The path of a tick and its result through the processes touches few modules."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median

from tests.faults.fleet import Fleet, scores
from tests.support.stack import pass_time
from tests.support.wait import wait_for

#: Modules of dsf that a cycle and its result enter in beat, agent and results worker together: 45, and that of one poll
#: which on a busy machine looks like a part of each cycle, such as the heartbeats.
MOST = 46
#: Windows with cycles, and cycles of each. The median window counts: a new connection or one more poll is in few of
#: them.
_WINDOWS, _CYCLES = 5, 4
#: Calls in the median window from which a function belongs to each cycle. A window's edge may cut one cycle off.
_CALLS = _CYCLES - 1
#: The same as a multiple of the calls without cycles: the rate of polls is not constant.
_TIMES_IDLE = 1.5


def test_cycle_and_its_result_enter_few_modules(tmp_path: Path) -> None:
    files = {role: tmp_path / role for role in ("beat", "agent", "results")}
    with Fleet(tmp_path / "stack", altered={role: ("--calls", str(file)) for role, file in files.items()}) as fleet:
        fleet.scorer("sample", scores(10), interval=1, query="up")
        fleet.wait_success("sample", cycles=3)
        began, snapshots = time.monotonic(), [_calls(files)]
        for _ in range(_WINDOWS):
            fleet.wait_success("sample", cycles=_CYCLES)
            snapshots.append(_calls(files))
        window = (time.monotonic() - began) / _WINDOWS
        busy = _in_median_window(snapshots)
        fleet.scorer("sample", scores(10), interval=3600, query="up")
        fleet.until(
            lambda: {entry.interval for entry in fleet.schedule.read_entries()} == {3600}, "the longer interval"
        )
        pass_time(4)
        snapshots = [_calls(files)]
        # Count the calls of idle windows of the same length.
        for _ in range(3):
            pass_time(window)
            snapshots.append(_calls(files))
        idle = _in_median_window(snapshots)
    entered: dict[str, set[str]] = {role: set() for role in files}
    for (role, function), calls in busy.items():
        idle_calls = idle.get((role, function), 0)
        if calls >= max(idle_calls + _CALLS, _TIMES_IDLE * idle_calls):
            entered[role].add(function.partition(":")[0])
    assert "dsf.beat.dispatch" in entered["beat"]
    cycle_modules = {"dsf.tasks.cycle", "dsf.agent.ticks", "dsf.agent.cycles", "dsf.http.client", "dsf.agent.outbox"}
    assert cycle_modules <= entered["agent"]
    assert {"dsf.results.intake", "dsf.tasks.ingest", "dsf.results.ending"} <= entered["results"]
    assert len(set().union(*entered.values())) <= MOST, json.dumps(entered, indent=1, default=sorted)


def _calls(files: dict[str, Path]) -> Counter[tuple[str, str]]:
    """Role and function (`module:name`) -> its calls so far."""
    calls: Counter[tuple[str, str]] = Counter()
    for role, file in files.items():
        wait_for(file.exists)
        calls.update({(role, function): number for function, number in json.loads(file.read_text()).items()})
    return calls


def _in_median_window(snapshots: list[Counter[tuple[str, str]]]) -> dict[tuple[str, str], float]:
    """Role and function -> its calls between two consecutive snapshots, the median."""
    windows = [after - before for before, after in pairwise(snapshots)]
    return {function: median(window[function] for window in windows) for function in snapshots[-1]}
