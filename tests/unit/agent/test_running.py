"""Which cycles run in an agent at the same time, and the payloads between their stages."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dsf.agent.cycles import RunningCycles
from dsf.api.summary import ScorerSummary
from dsf.cycle.stages import Cycle, FilePayload, keep, prepare
from dsf.errors import SettingsError

SMALL, LARGE = b"x" * 1000, b"y" * 700_000


def cycle(scorer: str = "a", run_id: str = "1", left: float = 60.0) -> Cycle:
    return Cycle(scorer, run_id, ScorerSummary.model_construct(name=scorer), time.monotonic() + left)


@pytest.mark.parametrize(
    ("left", "may"),
    [
        # Still running.
        (60.0, False),
        # Its time is over: it ends in this moment.
        (-1.0, True),
        # A plug-in hangs: each tick would take one more thread.
        (-6.0, False),
    ],
)
def test_scorer_runs_one_cycle_at_a_time(left: float, may: bool) -> None:
    running, first, other = RunningCycles(), cycle(left=left), cycle("b", "2")
    assert running.enter(first)
    assert running.enter(other)
    assert running.enter(cycle(run_id="3")) is may
    if not may:
        running.leave(first)
        assert running.enter(cycle(run_id="4"))


def test_duplicate_run_of_a_scorer_is_not_new() -> None:
    running = RunningCycles()
    assert [running.is_new("a", run) for run in ("1", "1", "2")] == [True, False, True]
    assert running.is_new("b", "2")


def test_cycles_of_removed_scorers_end_now() -> None:
    running, gone, stays = RunningCycles(), cycle(), cycle("b", "2")
    assert running.enter(gone)
    assert running.enter(stays)
    assert running.end_others({"b"}) == [gone]
    assert gone.deadline <= time.monotonic() < stays.deadline
    assert running.end_others({"b"}) == []


def test_small_payload_stays_in_memory(tmp_path: Path) -> None:
    assert keep(tmp_path, [SMALL, memoryview(SMALL)]) == SMALL * 2


def test_large_payload_is_in_an_unnamed_file(tmp_path: Path) -> None:
    payload = keep(tmp_path, [SMALL, memoryview(LARGE)])
    assert isinstance(payload, FilePayload)
    assert len(payload) == len(SMALL + LARGE)
    # Once for each try.
    for _ in range(2):
        assert b"".join(bytes(piece) for piece in payload) == SMALL + LARGE
    assert list(tmp_path.iterdir()) == []
    payload.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
def test_unwritable_payload_is_an_error() -> None:
    with pytest.raises(OSError, match=r".+"):
        keep(Path("/dev/full"), [LARGE])


def test_unusable_spool_folder_is_named(tmp_path: Path) -> None:
    prepare(None)
    prepare(tmp_path / "new" / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=f"DSF_AGENT_SPOOL_DIR: cannot use {tmp_path}/file"):
        prepare(tmp_path / "file")
