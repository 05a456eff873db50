"""Concurrent cycles of an agent, and the payloads between their stages."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dsf.agent.cycles import RunningCycles
from dsf.api.summary import ScorerSummary
from dsf.cycle.stages import Cycle, FilePayload, prepare_folder, store_payload
from dsf.errors import SettingsError

SMALL, LARGE = b"x" * 1000, b"y" * 700_000


def cycle(scorer: str = "a", run_id: str = "1", remaining_seconds: float = 60.0) -> Cycle:
    return Cycle(scorer, run_id, ScorerSummary.model_construct(name=scorer), time.monotonic() + remaining_seconds)


@pytest.mark.parametrize(
    ("remaining_seconds", "may"),
    [
        # The first cycle is still running.
        (60.0, False),
        # The first cycle has just passed its deadline and is ending.
        (-1.0, True),
        # With a hanging plug-in, each tick would occupy another thread.
        (-6.0, False),
    ],
)
def test_scorer_runs_one_cycle_at_a_time(remaining_seconds: float, may: bool) -> None:
    running, first, other = RunningCycles(), cycle(remaining_seconds=remaining_seconds), cycle("b", "2")
    assert running.register_cycle(first)
    assert running.register_cycle(other)
    assert running.register_cycle(cycle(run_id="3")) is may
    if not may:
        running.remove_cycle(first)
        assert running.register_cycle(cycle(run_id="4"))


def test_duplicate_run_of_a_scorer_is_not_new() -> None:
    running = RunningCycles()
    assert [running.register_run("a", run) for run in ("1", "1", "2")] == [True, False, True]
    assert running.register_run("b", "2")


def test_cycles_of_removed_scorers_end_now() -> None:
    running, removed_cycle, kept_cycle = RunningCycles(), cycle(), cycle("b", "2")
    assert running.register_cycle(removed_cycle)
    assert running.register_cycle(kept_cycle)
    assert running.end_removed({"b"}) == [removed_cycle]
    assert removed_cycle.deadline <= time.monotonic() < kept_cycle.deadline
    assert running.end_removed({"b"}) == []


def test_small_payload_stays_in_memory(tmp_path: Path) -> None:
    assert store_payload(tmp_path, [SMALL, memoryview(SMALL)]) == SMALL * 2


def test_large_payload_is_in_an_unnamed_file(tmp_path: Path) -> None:
    payload = store_payload(tmp_path, [SMALL, memoryview(LARGE)])
    assert isinstance(payload, FilePayload)
    assert len(payload) == len(SMALL + LARGE)
    # Each attempt reads the whole payload.
    for _ in range(2):
        assert b"".join(bytes(piece) for piece in payload) == SMALL + LARGE
    assert list(tmp_path.iterdir()) == []
    payload.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
def test_unwritable_payload_is_an_error() -> None:
    with pytest.raises(OSError, match=r".+"):
        store_payload(Path("/dev/full"), [LARGE])


def test_unusable_spool_folder_is_named(tmp_path: Path) -> None:
    prepare_folder(None)
    prepare_folder(tmp_path / "new" / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=f"DSF_AGENT_SPOOL_DIR: cannot use {tmp_path}/file"):
        prepare_folder(tmp_path / "file")
