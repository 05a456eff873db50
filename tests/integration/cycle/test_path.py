"""Who follows a tick and its result through the processes comes by few modules."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

from tests.faults.fleet import Fleet, scores
from tests.support.stack import pass_time
from tests.support.wait import wait_for

#: Modules of dsf that a cycle and its result enter in beat, agent and results worker together. They were 35; since then
#: each cycle needs the hub's clock (`process.hubclock`, and `results.worker`, which hands it to the intake), bounds on
#: the JSON of others (`boundedjson`), shares of threads and of memory (`agent.turns`, `sources.room`), and the rule of
#: the items that the hub shares with explain and backtests (`api.scorerule`).
MOST = 42
#: Calls of a function that is of each cycle, at least, while there are that many of them. What comes now and then has
#: fewer: a new connection, or one more look.
_CYCLES = 20


def test_cycle_and_its_result_enter_few_modules(tmp_path: Path) -> None:
    files = {role: tmp_path / role for role in ("beat", "agent", "results")}
    with Fleet(tmp_path / "stack", altered={role: ("--calls", str(file)) for role, file in files.items()}) as fleet:
        fleet.scorer("sample", scores(10), interval=1, query="up")
        fleet.wait_success("sample", cycles=3)
        busy, began = {role: _calls(file) for role, file in files.items()}, time.monotonic()
        fleet.wait_success("sample", cycles=_CYCLES + 2)
        # What is counted is written several times a second.
        pass_time(1)
        busy = {role: _calls(file) - busy[role] for role, file in files.items()}
        took = time.monotonic() - began
        fleet.scorer("sample", scores(10), interval=3600, query="up")
        fleet.until(lambda: {entry.interval for entry in fleet.schedule.entries()} == {3600}, "the longer interval")
        pass_time(4)
        idle = {role: _calls(file) for role, file in files.items()}
        # What happens anyway, in as much time.
        pass_time(took)
        idle = {role: _calls(file) - idle[role] for role, file in files.items()}
    entered = {
        role: sorted(
            {name.partition(":")[0] for name, calls in busy[role].items() if calls - idle[role][name] >= _CYCLES}
        )
        for role in files
    }
    assert "dsf.schedule.dispatch" in entered["beat"]
    assert {"dsf.agent.ticks", "dsf.agent.cycles", "dsf.http.client", "dsf.agent.outbox"} <= set(entered["agent"])
    assert {"dsf.results.intake", "dsf.results.ending"} <= set(entered["results"])
    assert len(set().union(*entered.values())) <= MOST, json.dumps(entered, indent=1)


def _calls(file: Path) -> Counter[str]:
    """Function (`module:name`) -> its calls so far."""
    return Counter(wait_for(lambda: file.exists() and json.loads(file.read_text())))
