"""The rate of score writes, and its effect on their validity."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsf.scores import writer as writer_module
from tests.integration.results.bed import ResultsHarness
from tests.support.wait import wait_for


def fill(bed: ResultsHarness, clusters: int, write_rate: float) -> None:
    """Add clusters, each with a score to write, at this many writes a second."""
    bed.settings = bed.settings.model_copy(update={"write_rate": write_rate})
    for n in range(clusters):
        bed.add(f"c{n}")
        bed.cycle(f"c{n}")


def test_writes_keep_to_the_rate(bed: ResultsHarness) -> None:
    fill(bed, 45, write_rate=50.0)
    began = time.monotonic()
    bed.write()
    seconds = time.monotonic() - began
    assert len(bed.backend.log) == 45
    # 40 at 50/s after a burst of 5.
    assert seconds >= 0.75


def test_write_tokens_are_taken_by_one_thread_at_a_time(bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bed, 30, write_rate=100.0)
    writer = bed.writer()
    take, asking = writer._write_rate.take, threading.Lock()
    was_alone: list[bool] = []

    def take_token() -> float:
        is_alone = asking.acquire(blocking=False)
        was_alone.append(is_alone)
        try:
            return take()
        finally:
            if is_alone:
                asking.release()

    monkeypatch.setattr(writer._write_rate, "take", take_token)
    writer.step()
    assert len(bed.backend.log) == 30
    assert all(was_alone)


def test_validities_are_extended_with_the_size_of_the_fleet(bed: ResultsHarness) -> None:
    fill(bed, 31, write_rate=1000.0)
    bed.write()
    bed.settings = bed.settings.model_copy(update={"write_rate": 0.1})
    writer = bed.writer()
    writer.step()
    # 31 objects / 150 s against half of 0.1 a second.
    assert bed.writes.read_validity_factor() == round(31 / 150 / 0.05, 3)
    bed.cycle("c1", results=[({"node": "a"}, 7.0)])
    # Every reader sees the same end.
    assert round(bed.pairs.read_state("c1", "s1").valid_until - bed.now) == round(300 * 31 / 150 / 0.05)
    bed.settings = bed.settings.model_copy(update={"write_rate": 1000.0})
    bed.write()
    state = bed.backend.find_score("c1", "score-of-s1")
    assert state is not None
    assert abs(state.valid_until - bed.now - 300 * 31 / 150 / 0.05) < 2


def test_waiting_results_go_before_scores(bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a batch of scores the process's other threads get its CPU; the writer only waits for results."""
    monkeypatch.setattr(writer_module, "_CPU_SHARE_OF_INGEST", 1e9)
    monkeypatch.setattr(writer_module, "_MAX_YIELD_SECONDS", 600.0)
    fill(bed, 40, write_rate=100_000.0)
    writer, is_behind, checks = bed.writer(), threading.Event(), []
    is_behind.set()
    monkeypatch.setattr(writer, "_is_behind", lambda: checks.append(is_behind.is_set()) or checks[-1])
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(writer.step)
        wait_for(lambda: len(bed.backend.log) == 32, 10, "a batch")
        wait_for(lambda: len(checks) >= 3, 10, "looks at waiting results")
        assert not first.done()
        is_behind.clear()
        first.result(60)
    writer.step()
    assert len(bed.backend.log) == 40


def test_counters_of_a_batch_are_stored_together(bed: ResultsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bed, 30, write_rate=100_000.0)
    writer, recorded = bed.writer(), []
    record = writer._store.record_pass
    monkeypatch.setattr(writer._store, "record_pass", lambda counts: recorded.append(dict(counts)) or record(counts))
    writer.step()
    assert recorded == [{"written": 30}]
