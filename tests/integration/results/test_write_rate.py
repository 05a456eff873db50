"""Several writers, one rate: how fast scores are written, and what follows for their validity."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsf import keys
from dsf.results import writer as writer_module
from dsf.results.writer import LEASE
from tests.integration.results.bed import Bed
from tests.integration.results.writes import NAME
from tests.support.wait import wait_for


def fill(bed: Bed, clusters: int, write_rate: float) -> None:
    """So many clusters, each with a score to write, at so many writes a second."""
    bed.settings = bed.settings.model_copy(update={"write_rate": write_rate})
    for n in range(clusters):
        bed.add(f"c{n}")
        bed.cycle(f"c{n}")


def test_two_workers_write_each_change_once(bed: Bed) -> None:
    pairs = [(f"c{n}", "s1") for n in range(60)]
    for cluster, scorer in pairs:
        bed.add(cluster, scorer)
    settings = bed.settings.model_copy(update={"write_rate": 10_000.0})
    bed.settings = settings
    for value in (1.0, 2.0):
        for cluster, scorer in pairs:
            bed.cycle(cluster, scorer, results=[({"node": "a"}, value)])
        before = len(bed.backend.log)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda writer: [writer.step() for _ in range(20)], [bed.writer(), bed.writer()]))
        assert sorted(bed.backend.log[before:]) == sorted(("apply", cluster, NAME) for cluster, _ in pairs)


def test_the_rate_is_that_of_all_writers_together(bed: Bed) -> None:
    fill(bed, 45, write_rate=50.0)
    began = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda writer: [writer.step() for _ in range(5)], [bed.writer() for _ in range(3)]))
    seconds = time.monotonic() - began
    assert len(bed.backend.log) == 45
    # 40 at 50/s after a burst of 5.
    assert seconds >= 0.75


def test_one_thread_at_a_time_asks_for_a_turn(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bed, 30, write_rate=100.0)
    writer = bed.writer()
    take, asking = writer._writes.take_turn, threading.Lock()
    was_alone: list[bool] = []

    def asked(rate: float) -> float:
        is_alone = asking.acquire(blocking=False)
        was_alone.append(is_alone)
        try:
            return take(rate)
        finally:
            if is_alone:
                asking.release()

    monkeypatch.setattr(writer._writes, "take_turn", asked)
    writer.step()
    assert len(bed.backend.log) == 30
    assert all(was_alone)


def test_validity_stretches_with_the_fleet(bed: Bed) -> None:
    bed.settings = bed.settings.model_copy(update={"write_rate": 0.1})
    bed.cycle()
    bed.write()
    for n in range(30):
        bed.client.hset(keys.WRITTEN, f"other{n}/s1", "{}")
    bed.client.delete(keys.WRITE_AUDIT, keys.WRITE_BUDGET)
    writer = bed.writer()
    writer._audit()
    # 31 objects / 150 s against half of 0.1 a second.
    assert bed.writes.validity_factor() == round(31 / 150 / 0.05, 3)
    for n in range(30):
        bed.client.hdel(keys.WRITTEN, f"other{n}/s1")
    bed.client.zremrangebyrank(keys.WRITES, 0, -1)
    bed.cycle(results=[({"node": "a"}, 7.0)])
    # Every reader sees the same end.
    assert round(bed.pairs.state("c1", "s1").valid_until - bed.now) == round(300 * 31 / 150 / 0.05)
    bed.client.set(keys.WRITE_AUDIT, "1")
    bed.write()
    written = bed.client.hget(keys.WRITTEN, "c1/s1")
    record = bed.writes.facts(bed.writes.claim(bed.now + 10_000, LEASE, 1)[0])[0].written
    assert written is not None
    assert record is not None
    assert round(record.valid_until - bed.now) == round(300 * 31 / 150 / 0.05)


def test_turns_are_given_one_by_one_after_a_burst(bed: Bed) -> None:
    # A thousand seconds a write: none becomes due meanwhile.
    assert [bed.writes.take_turn(0.001) for _ in range(5)] == [0.0] * 5
    assert 900 < bed.writes.take_turn(0.001) <= 1000


def test_results_that_wait_go_before_scores(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of scores, then the worker's other threads have its CPU; and nobody waits where no result does."""
    monkeypatch.setattr(writer_module, "_OTHERS", 1e9)
    monkeypatch.setattr(writer_module, "_LONGEST_YIELD", 600.0)
    fill(bed, 40, write_rate=100_000.0)
    writer, is_behind, looks = bed.writer(), threading.Event(), []
    is_behind.set()
    monkeypatch.setattr(writer, "_is_behind", lambda: looks.append(is_behind.is_set()) or looks[-1])
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(writer.step)
        wait_for(lambda: len(bed.backend.log) == 32, 10, "a batch")
        wait_for(lambda: len(looks) >= 3, 10, "looks at what waits")
        assert not first.done()
        is_behind.clear()
        first.result(60)
    writer.step()
    assert len(bed.backend.log) == 40


def test_a_batch_notes_what_is_done_together(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bed, 30, write_rate=100_000.0)
    writer, noted = bed.writer(), []
    finish = writer._writes.finish_all
    monkeypatch.setattr(writer._writes, "finish_all", lambda ends: noted.append(len(ends)) or finish(ends))
    writer.step()
    assert len(bed.backend.log) == 30
    assert sum(noted) == 30
    # What is done with does not wait for long. One by one they would be 30.
    assert len(noted) < 30
