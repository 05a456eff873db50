"""Values that readers share are computed once and are as new as required."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from dsf.errors import BackendError
from dsf.process.valuecache import ValueCache
from tests.support.wait import wait_for


def test_value_is_made_once_for_concurrent_readers() -> None:
    shared: ValueCache[str, int] = ValueCache(60.0, 2)
    numbers, barrier = count(), threading.Barrier(5)

    def get() -> int:
        barrier.wait(30)
        return shared.get("a", lambda: next(numbers))

    with ThreadPoolExecutor(5) as pool:
        assert [future.result() for future in [pool.submit(get) for _ in range(5)]] == [0] * 5
    assert shared.get("a", lambda: next(numbers), is_new=True) == 1
    assert shared.get("a", lambda: next(numbers)) == 1


def test_new_value_is_made_by_one_thread_at_a_time() -> None:
    """Readers that need a newer value than the one that is being computed share the next one."""
    shared: ValueCache[str, int] = ValueCache(60.0, 2, max_threads=5)
    semaphore = shared._thread_semaphore
    numbers, inside, go_on, busy = count(), threading.Event(), threading.Event(), threading.Lock()

    def make() -> int:
        assert busy.acquire(blocking=False), "two make it at a time"
        inside.set()
        assert go_on.wait(30)
        busy.release()
        return next(numbers)

    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(shared.get, "a", make, is_new=True)
        assert inside.wait(30)
        other_futures = [pool.submit(shared.get, "a", make, is_new=True) for _ in range(4)]
        wait_for(lambda: semaphore._value == 0, 30)
        go_on.set()
        assert [future.result(30) for future in (first, *other_futures)] == [0, 1, 1, 1, 1]


def test_waiting_readers_share_the_error_and_leave_threads_free() -> None:
    """A server that has just failed for all waiting readers is not queried again by each of them."""
    shared: ValueCache[str, int] = ValueCache(60.0, 2, max_threads=5)
    semaphore = shared._thread_semaphore
    inside, go_on, calls = threading.Event(), threading.Event(), count()

    def fail() -> int:
        next(calls)
        inside.set()
        assert go_on.wait(30)
        raise ValueError("no")

    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(shared.get, "a", fail)
        assert inside.wait(30)
        other_futures = [pool.submit(shared.get, "a", fail) for _ in range(4)]
        wait_for(lambda: semaphore._value == 0, 30)
        with pytest.raises(BackendError, match="too much at a time"):
            shared.get("b", lambda: 1)
        go_on.set()
        assert {future.exception(30) for future in other_futures} == {first.exception(30)}
    assert next(calls) == 1
    assert shared.get("a", lambda: 3) == 3


def test_error_is_not_cached() -> None:
    shared: ValueCache[str, int] = ValueCache(60.0, 2)

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        shared.get("a", fail)
    assert shared.get("a", lambda: 3) == 3


def test_cache_keeps_the_most_recently_requested_keys() -> None:
    shared: ValueCache[str, int] = ValueCache(60.0, 2)
    numbers = count()
    values = [shared.get(key, lambda: next(numbers)) for key in "abacab"]
    assert values == [0, 1, 0, 2, 0, 3]


def test_failed_value_evicts_no_other() -> None:
    shared: ValueCache[str, int] = ValueCache(60.0, 2)

    def fail() -> int:
        raise ValueError("no")

    assert shared.get("a", lambda: 1) == 1
    for number in range(5):
        with pytest.raises(ValueError, match="no"):
            shared.get(f"wrong {number}", fail)
    assert shared.get("a", lambda: 2) == 1
