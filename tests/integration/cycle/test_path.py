"""Who follows a tick and its result through the processes comes by few modules."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

from tests.faults.fleet import Fleet, scores
from tests.support.wait import wait_for

#: Modules of dsf that a cycle and its result enter in beat, agent and results worker together: 35, and two for
#: what is not of each cycle, such as a new connection.
MOST = 37
#: Seconds of cycles, one a second, and of none; and cycles that are there at least.
_SECONDS, _CYCLES = 8, 5


def test_a_cycle_and_its_result_enter_few_modules(tmp_path: Path) -> None:
    files = {role: tmp_path / role for role in ("beat", "agent", "results")}
    with Fleet(tmp_path / "stack", altered={role: ("--calls", str(file)) for role, file in files.items()}) as fleet:
        fleet.scorer("sample", scores(10), interval=1, query="up")
        fleet.wait_success("sample", more=3)
        busy = {role: _calls(file) for role, file in files.items()}
        time.sleep(_SECONDS)
        busy = {role: _calls(file) - busy[role] for role, file in files.items()}
        fleet.scorer("sample", scores(10), interval=3600, query="up")
        time.sleep(_SECONDS / 2)
        idle = {role: _calls(file) for role, file in files.items()}
        time.sleep(_SECONDS)
        idle = {role: _calls(file) - idle[role] for role, file in files.items()}
    entered = {
        role: sorted(name for name, calls in busy[role].items() if calls - idle[role][name] >= _CYCLES)
        for role in files
    }
    assert "dsf.schedule.dispatch" in entered["beat"]
    assert {"dsf.agent.ticks", "dsf.agent.cycles", "dsf.http.client", "dsf.agent.outbox"} <= set(entered["agent"])
    assert {"dsf.results.intake", "dsf.results.ending"} <= set(entered["results"])
    assert len(set().union(*entered.values())) <= MOST, json.dumps(entered, indent=1)


def _calls(file: Path) -> Counter[str]:
    """Module -> calls of its functions so far."""
    return Counter(wait_for(lambda: file.exists() and json.loads(file.read_text())))
