"""The threads of an agent, which namespaces share."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.agent.fairqueue import WAITING_PER_THREAD, FairQueue, SharedThreads, Tick
from dsf.agent.ticks import REFUSAL, TICK_HEADER
from dsf.errors import CycleError
from dsf.messages import CYCLE_TASK
from dsf.reasons import SkipReason
from tests.support.wait import PATIENCE, wait_for


def tick(scorer: str, deadline: float | None = None) -> Tick:
    return Tick(scorer, deadline, lambda: None, {})


def make_queue(threads: int, **namespaces: int) -> FairQueue:
    """Return a queue with this many scorers per namespace: `a0`, `a1` ... of `a`; `hub` is the hub's namespace."""
    scorers = {
        f"{name}{number}": "" if name == "hub" else name
        for name, scorers in namespaces.items()
        for number in range(scorers)
    }
    return FairQueue(threads, lambda: scorers)


def start_ticks(queue: FairQueue) -> list[str]:
    """Return the scorers of the ticks that start now."""
    return [tick.scorer for tick in iter(queue.take, None)]


def add_ticks(queue: FairQueue, name: str, scorers: int) -> None:
    for number in range(scorers):
        assert queue.add(tick(f"{name}{number}"))


@pytest.mark.parametrize("name", ["hub", "team"])
def test_namespace_that_is_alone_has_all_threads(name: str) -> None:
    queue = make_queue(8, **{name: 24})
    add_ticks(queue, name, 24)
    assert start_ticks(queue) == [f"{name}{number}" for number in range(8)]


@pytest.mark.parametrize("threads", [2, 3, 4, 8, 100])
def test_hanging_namespaces_leave_threads_for_others(threads: int) -> None:
    queue = make_queue(threads, hub=1, a=1000, b=1)
    for number in range(1000):
        queue.add(tick(f"a{number}"))
    assert 1 <= len(start_ticks(queue)) < threads
    add_ticks(queue, "hub", 1)
    assert start_ticks(queue) == ["hub0"]
    if threads > 2:
        add_ticks(queue, "b", 1)
        assert start_ticks(queue) == ["b0"]


def test_each_greedy_namespace_leaves_a_thread_for_the_next_one() -> None:
    queue = make_queue(8, hub=1, a=24, b=24, c=24)
    counts = []
    for name in ("a", "b", "c"):
        add_ticks(queue, name, 24)
        counts.append(len(start_ticks(queue)))
    assert counts == [3, 2, 1]
    add_ticks(queue, "hub", 1)
    assert start_ticks(queue) == ["hub0"]


def test_scorers_that_the_agent_does_not_know_leave_threads_for_the_hubs_own() -> None:
    queue = make_queue(8, hub=1, team=1)
    accepted = [queue.add(tick(f"deleted{number}")) for number in range(8 * WAITING_PER_THREAD)]
    # Their cycles wait for a summary, which may never arrive.
    assert 1 <= len(start_ticks(queue)) < 7
    assert accepted.count(False) > 0
    add_ticks(queue, "hub", 1)
    add_ticks(queue, "team", 1)
    assert start_ticks(queue) == ["hub0", "team0"]


def test_hubs_own_scorers_go_first_and_leave_one_thread() -> None:
    queue = make_queue(8, hub=24, a=24)
    add_ticks(queue, "a", 24)
    add_ticks(queue, "hub", 24)
    assert start_ticks(queue)[:7] == [f"hub{number}" for number in range(7)]
    assert [tick.scorer for tick in queue.drain() if tick.scorer.startswith("a")] == [
        f"a{number}" for number in range(1, 24)
    ]


def test_freed_thread_serves_the_namespace_with_the_fewest_cycles() -> None:
    queue = make_queue(4, a=9, b=9)
    add_ticks(queue, "a", 9)
    add_ticks(queue, "b", 9)
    begun = list(iter(queue.take, None))
    assert [tick.scorer for tick in begun] == ["a0", "b0", "a1"]
    queue.end(begun[1])
    assert start_ticks(queue) == ["b1"]


def test_ticks_that_wait_too_long_say_whose_share_is_full() -> None:
    queue = make_queue(4, hub=2, a=9)
    for number in range(9):
        assert queue.add(tick(f"a{number}", 10.0))
    running = len(start_ticks(queue))
    assert queue.expire(9.0) == []
    expired = queue.expire(10.0)
    assert [each.scorer for each, _ in expired] == [f"a{number}" for number in range(running, 9)]
    [reason] = {(error.reason, error.message) for _, error in expired}
    message = "the scorers of namespace a hold their share of this agent's threads (2 of 4): their sources or scoring "
    assert reason == (SkipReason.SHARE_FULL, f"{message}APIs are slow or hang")
    assert queue.drain() == []


def test_ticks_that_wait_for_busy_threads_expire() -> None:
    queue = make_queue(2, a=9)
    for number in range(9):
        assert queue.add(tick(f"a{number}", 10.0))
    assert len(start_ticks(queue)) == 2
    assert {error.reason for _, error in queue.expire(11.0)} == {SkipReason.EXPIRED}


def test_waiting_ticks_of_one_namespace_leave_room_for_others() -> None:
    queue = make_queue(2, hub=1, a=1, b=1)
    added = list(itertools.takewhile(bool, (queue.add(tick("a0")) for _ in range(10_000))))
    assert len(added) == WAITING_PER_THREAD
    assert queue.explain_refusal(tick("a0")).reason == SkipReason.SHARE_FULL
    assert queue.add(tick("b0"))
    assert queue.add(tick("hub0"))


def test_pool_skips_ticks_beyond_the_waiting_share() -> None:
    queue = make_queue(1, hub=1, a=1)
    runner = SimpleNamespace(tick_queue=queue, hub_time=lambda: 0.0)
    pool = SharedThreads(1, app=SimpleNamespace(tasks={CYCLE_TASK: SimpleNamespace(runner=runner)}))
    server_answers = threading.Event()
    skipped: list[CycleError] = []

    def run_cycle(name: str, task_id: str, headers: dict[str, Any]) -> None:
        if REFUSAL in headers:
            skipped.append(headers[REFUSAL])
        else:
            server_answers.wait(PATIENCE)

    pool.on_start()
    try:
        for _ in range(WAITING_PER_THREAD + 1):
            pool.on_apply(run_cycle, (CYCLE_TASK, "id", {TICK_HEADER: ("a0", None)}))
        wait_for(lambda: skipped, message="a tick to be skipped")
        assert {error.reason for error in skipped} == {SkipReason.SHARE_FULL}
    finally:
        queue.drain()
        server_answers.set()
        pool.on_stop()


@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.sampled_from(["hub", "a", "b", "c"]), st.sampled_from(["add", "take", "end"])), max_size=80),
)
def test_never_more_cycles_than_threads_and_no_tick_is_forgotten(threads: int, steps: list[tuple[str, str]]) -> None:
    queue = make_queue(threads, hub=1, a=1, b=1, c=1)
    running: list[Tick] = []
    added: list[Tick] = []
    begun: list[Tick] = []
    for name, step in steps:
        if step == "add":
            added.append(tick(f"{name}0"))
            assert queue.add(added[-1])
        elif step == "end" and running:
            queue.end(running.pop())
        elif step == "take" and (next_tick := queue.take()) is not None:
            running.append(next_tick)
            begun.append(next_tick)
        assert len(running) <= threads
    for each in running:
        queue.end(each)
    # A waiting tick can start while all threads are free.
    if len(begun) < len(added):
        next_tick = queue.take()
        assert next_tick is not None
        begun.append(next_tick)
    assert {id(each) for each in added} == {id(each) for each in [*begun, *queue.drain()]}
