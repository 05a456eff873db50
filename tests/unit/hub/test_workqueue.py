"""The work queue."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from queue import SimpleQueue

import pytest

from dsf.hub.controller import MAX_RETRY_SECONDS, WorkQueue
from tests.support.wait import wait_for


def stays_empty(queue: WorkQueue[str]) -> bool:
    """True if the queue returns no key for a while."""
    time.sleep(0.5)
    return len(queue) == 0


def test_queue_holds_each_key_once_in_order() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a", "c", "b"):
        queue.add(key)
    assert len(queue) == 3
    assert [queue.get() for _ in range(3)] == ["a", "b", "c"]


def test_key_added_during_its_work_is_queued_once_more() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert len(queue) == 1
    assert queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


def test_earliest_delay_of_a_key_wins_and_an_immediate_add_clears_delays() -> None:
    queue: WorkQueue[str] = WorkQueue()
    began = time.monotonic()
    queue.add_after("a", 60)
    queue.add_after("a", 0.02)
    queue.add_after("a", 60)
    assert queue.get() == "a"
    assert 0.02 <= time.monotonic() - began < 50
    queue.done("a")
    queue.add_after("b", 0.05)
    queue.add("b")
    assert queue.get() == "b"
    queue.done("b")
    # A later time for a key that is already ready is discarded.
    queue.add("c")
    queue.add_after("c", 0.01)
    assert queue.get() == "c"
    queue.done("c")
    assert stays_empty(queue)


def test_waiting_get_wakes_for_an_earlier_delay() -> None:
    queue: WorkQueue[str] = WorkQueue()
    got: list[str | None] = []
    queue.add_after("late", 60)
    thread = threading.Thread(target=lambda: got.append(queue.get()))
    thread.start()
    queue.add_after("early", 0.01)
    thread.join(50)
    assert got == ["early"]


def test_delays_double_up_to_a_limit_until_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda *_: 0.0)
    queue: WorkQueue[str] = WorkQueue()
    delays = [queue.retry("a") for _ in range(40)]
    assert delays[:4] == [0.005, 0.01, 0.02, 0.04]
    assert delays[-1] == MAX_RETRY_SECONDS
    queue.forget("a")
    assert queue.retry("a") == 0.005


def test_delays_differ() -> None:
    queue: WorkQueue[int] = WorkQueue()
    delays = {queue.retry(number) for number in range(50)}
    assert len(delays) > 40
    assert all(0.004 <= delay <= 0.005 for delay in delays)


def test_group_without_room_delays_no_other_and_keeps_its_order() -> None:
    queue = WorkQueue[str](lambda _, busy: busy < 1, lambda key: key[0])
    for key in ("a1", "a2", "a3", "b1"):
        queue.add(key)
    assert [queue.get(), queue.get()] == ["a1", "b1"]
    returned_keys: SimpleQueue[str | None] = SimpleQueue()
    thread = threading.Thread(target=lambda: returned_keys.put(queue.get()), daemon=True)
    thread.start()
    queue.done("b1")
    # The first waiting key of its group is returned once a key of that group is done.
    queue.done("a1")
    assert returned_keys.get(timeout=60) == "a2"
    assert len(queue) == 1


def test_search_for_a_key_looks_once_at_each_group() -> None:
    checked_groups: list[str] = []

    def may_process(group: str, busy_count: int) -> bool:
        checked_groups.append(group)
        return group != "a" or busy_count < 1

    queue = WorkQueue[str](may_process, lambda key: key[0])
    for number in range(1000):
        queue.add(f"a{number}")
    assert queue.get() == "a0"
    queue.add("b1")
    checked_groups.clear()
    assert queue.get() == "b1"
    assert checked_groups == ["a", "b"]


def test_shutdown_wakes_all_waiters_and_returns_no_more_keys() -> None:
    queue: WorkQueue[str] = WorkQueue()
    got: list[str | None] = ["nothing yet"] * 3

    def take(number: int) -> None:
        got[number] = queue.get()

    threads = [threading.Thread(target=take, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    queue.shutdown()
    for thread in threads:
        thread.join(50)
    assert got == [None, None, None]
    queue.add("a")
    queue.add_after("b", 0.001)
    assert queue.get() is None


def test_no_key_is_worked_on_twice_at_once_or_lost() -> None:
    queue: WorkQueue[int] = WorkQueue()
    at_work: Counter[int] = Counter()
    latest_versions, processed_versions = [0] * 5, [0] * 5
    clashes: list[int] = []
    lock = threading.Lock()

    def work() -> None:
        while (key := queue.get()) is not None:
            with lock:
                at_work[key] += 1
                if at_work[key] > 1:
                    clashes.append(key)
            processed_versions[key] = latest_versions[key]
            time.sleep(0.0002)
            with lock:
                at_work[key] -= 1
            queue.done(key)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(500):
        latest_versions[number % 5] = number
        queue.add(number % 5)
    wait_for(lambda: processed_versions == latest_versions, 10)
    queue.shutdown()
    for thread in threads:
        thread.join(50)
    assert clashes == []


def test_key_with_a_distant_delay_blocks_no_other() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("paused until 9999", 8_000 * 365 * 86_400.0)
    returned_keys: SimpleQueue[str | None] = SimpleQueue()
    thread = threading.Thread(target=lambda: returned_keys.put(queue.get()), daemon=True)
    thread.start()
    queue.add_after("other", 0.05)
    assert returned_keys.get(timeout=60) == "other"
    queue.shutdown()


def test_groups_are_served_round_robin() -> None:
    queue = WorkQueue[str](group=lambda key: key[0])
    for key in ("a1", "a2", "a3", "b1", "b2", "c1"):
        queue.add(key)
    order = []
    while len(queue):
        ready_key = queue.get()
        assert ready_key is not None
        order.append(ready_key)
        queue.done(ready_key)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_group_with_a_backlog_does_not_delay_others() -> None:
    queue = WorkQueue[str](group=lambda key: key[0])
    for number in range(1000):
        queue.add(f"a{number}")
    assert queue.get() == "a0"
    queue.add("b1")
    assert {queue.get(), queue.get()} == {"a1", "b1"}
