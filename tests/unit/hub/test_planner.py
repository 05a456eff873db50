"""When plans are made."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import cast

import pytest

from dsf.backends.protocol import Kind, ObjectKey
from dsf.errors import BackendError
from dsf.hub.desiredstate import REST, DesiredState, Planner
from dsf.hub.outage import Outage
from tests.support.wait import wait_for


class Desired:
    """A desired state whose plans take a moment; each consists of the changes before it."""

    config_key = ObjectKey(Kind.CONFIG, "hub", "config")

    def __init__(self) -> None:
        self.took = 0.0
        self.ends = float("inf")
        self.failures = 0
        self.waiting: set[ObjectKey] = set()
        self.plans: list[frozenset[str]] = []
        #: When each began and ended.
        self.times: list[tuple[float, float]] = []

    def note(self, *changed: ObjectKey) -> None:
        self.waiting |= set(changed)

    def update(self) -> None:
        began = time.monotonic()
        if self.failures:
            self.failures -= 1
            raise BackendError("the API server does not answer")
        changed, self.waiting = self.waiting, set()
        time.sleep(self.took)
        self.plans.append(frozenset(key.name for key in changed))
        self.times.append((began, time.monotonic()))


@pytest.fixture
def desired() -> Desired:
    return Desired()


@pytest.fixture
def planner(desired: Desired) -> Iterator[Planner]:
    made = Planner(cast("DesiredState", desired), Outage("Redis"))
    made.controller.start()
    yield made
    made.controller.stop()


def _scorer(number: int) -> ObjectKey:
    return ObjectKey(Kind.SCORER, "hub", f"s{number}")


def test_each_change_is_in_a_plan_and_many_share_one(planner: Planner, desired: Desired) -> None:
    desired.took = 0.05
    for number in range(300):
        planner.changed(_scorer(number))
        time.sleep(0.001)
    wait_for(lambda: sum(map(len, desired.plans)) == 300)
    # A rest after each: at most one plan in three of these times.
    assert len(desired.plans) < 100
    for (began, ended), (next_began, _) in zip(desired.times, desired.times[1:], strict=False):
        assert next_began - ended >= REST * (ended - began) * 0.9


def test_a_change_is_planned_at_once_when_nothing_else_changes(planner: Planner, desired: Desired) -> None:
    planner.changed(_scorer(1))
    wait_for(lambda: desired.plans == [{"s1"}])


def test_a_plan_that_fails_is_made_again(planner: Planner, desired: Desired) -> None:
    desired.failures = 3
    planner.changed(_scorer(1))
    wait_for(lambda: desired.plans == [{"s1"}])


def test_a_plan_that_ends_by_itself_is_followed_by_another(planner: Planner, desired: Desired) -> None:
    desired.ends = time.time() + 0.3
    planner.changed(_scorer(1))
    wait_for(lambda: len(desired.plans) >= 2)
    desired.ends = float("inf")
    assert desired.plans[1] == frozenset()


def test_what_changed_before_a_plan_of_another_thread_failed_is_in_the_next(planner: Planner, desired: Desired) -> None:
    desired.note(_scorer(1))
    desired.failures = 1
    with pytest.raises(BackendError):
        planner.update()
    wait_for(lambda: desired.plans == [{"s1"}])
