"""The threads of the stages: in order, as many as wanted, and others in the place of those that hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from dsf.agent.pool import StagePool
from tests.support.wait import wait_for


@pytest.fixture
def others() -> set[threading.Thread]:
    """Threads of other tests' pools, which may still be ending."""
    return threads()


@pytest.fixture
def pool(others: set[threading.Thread]) -> Iterator[StagePool]:
    del others  # looked at before this pool starts
    made = StagePool(2)
    made.start()
    yield made
    made.stop()


def run(pool: StagePool, work: Callable[[], object]) -> None:
    pool.on_apply(work, (), callback=lambda _: None, accept_callback=lambda *_: None)


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "dsf-stage"}


def test_there_is_room_while_a_thread_is_free(pool: StagePool) -> None:
    gate, rooms = threading.Event(), threading.Semaphore(0)
    pool.on_room = rooms.release
    run(pool, gate.wait)
    assert pool.room()
    run(pool, gate.wait)
    run(pool, gate.wait)
    assert not pool.room()
    gate.set()
    assert rooms.acquire(timeout=300)
    wait_for(pool.room, 20, "room")


def test_a_thread_that_hangs_is_replaced_until_it_returns(pool: StagePool, others: set[threading.Thread]) -> None:
    gate, done = threading.Event(), threading.Event()
    run(pool, gate.wait)
    run(pool, gate.wait)
    run(pool, done.set)
    pool.replace(2)
    assert done.wait(60)
    assert pool.room()
    # However many hang, there are never more than twice as many.
    pool.replace(50)
    assert len(threads() - others) == 4
    gate.set()
    pool.replace(0)
    for _ in range(4):
        run(pool, lambda: None)
    wait_for(lambda: len(threads() - others) == 2, 20, "the threads that replaced them to go")


def test_what_follows_runs_in_the_same_thread_before_all_that_waits(pool: StagePool) -> None:
    gate, done = threading.Event(), threading.Semaphore(0)
    ran: list[tuple[str, threading.Thread]] = []

    def first() -> None:
        pool.follow(lambda: run(pool, second))
        ran.append(("first", threading.current_thread()))
        # It may fail in what Celery does around it.
        raise RuntimeError

    def second() -> None:
        ran.append(("second", threading.current_thread()))
        # Nothing comes of it, as of a task that has expired.
        pool.follow(lambda: None)
        done.release()

    def other() -> None:
        ran.append(("other", threading.current_thread()))
        done.release()

    run(pool, gate.wait)
    run(pool, first)
    run(pool, other)
    for _ in range(2):
        assert done.acquire(timeout=300)
    assert [name for name, _ in ran] == ["first", "second", "other"]
    assert len({thread for _, thread in ran}) == 1
    gate.set()
    wait_for(lambda: pool.room() == 2, 20, "both threads to be free")


def test_what_cannot_be_received_ends_no_thread(pool: StagePool) -> None:
    def fail() -> None:
        raise RuntimeError("a mistake of Celery")

    done = threading.Event()
    for _ in range(4):
        run(pool, lambda: pool.follow(fail))
    run(pool, done.set)
    assert done.wait(60)


def test_an_error_around_a_task_ends_no_thread(pool: StagePool) -> None:
    def fail() -> None:
        raise RuntimeError("a mistake of Celery")

    done = threading.Event()
    for _ in range(4):
        run(pool, fail)
    run(pool, done.set)
    assert done.wait(60)


def test_it_ends_when_all_is_done_that_follows() -> None:
    pool = StagePool(1)
    pool.start()
    left, done = [1, 2, 3], []

    def follow() -> bool:
        if left:
            run(pool, lambda: done.append(left.pop()))
        return bool(left)

    pool.is_more_to_come = follow
    pool.stop()
    assert done == [3, 2, 1]
