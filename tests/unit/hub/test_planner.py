"""Times of plans."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Set

import pytest

from dsf.backends.protocol import Kind, ObjectKey
from dsf.errors import BackendError
from dsf.hub.desiredstate import PAUSE_FACTOR, SHORT_PAUSE_FACTOR, DesiredState
from dsf.hub.plan import Differences, FleetPlan
from dsf.hub.scorerplan import ScorerPlan
from dsf.process.outage import Outage
from dsf.settings import Settings
from tests.support.wait import wait_for
from tests.unit.hub.builders import scorer
from tests.unit.hub.objects import Objects


class Desired(DesiredState):
    """A desired state whose plans take a moment; each contains the changes before it."""

    def __init__(self, settings: Settings) -> None:
        #: CPU seconds of each plan.
        self.took = 0.0
        #: When the plan changes by itself.
        self.until: float | None = None
        self.failures = 0
        self.plans: list[frozenset[str]] = []
        #: When each began and ended.
        self.times: list[tuple[float, float]] = []
        super().__init__(Objects().backend, settings, Outage("Redis"), lambda _: None, self._planned)

    def _make_plan(self) -> FleetPlan:
        began = time.monotonic()
        if self.failures:
            self.failures -= 1
            raise BackendError("the API server does not answer")
        cpu_began = time.thread_time()
        while time.thread_time() - cpu_began < self.took:
            pass
        self.times.append((began, time.monotonic()))
        return FleetPlan(scorers={"hub/s": ScorerPlan(scorer(), None, None, suspended_until=self.until)})

    def _planned(self, _: Differences, changed: Set[ObjectKey]) -> None:
        self.plans.append(frozenset(key.name for key in changed))


@pytest.fixture
def desired(settings_factory: Callable[..., Settings]) -> Iterator[Desired]:
    desired_state = Desired(settings_factory(namespace="hub"))
    desired_state.controller.start()
    yield desired_state
    desired_state.controller.stop()


def _scorer(number: int, namespace: str = "hub") -> ObjectKey:
    return ObjectKey(Kind.SCORER, namespace, f"s{number}")


def test_each_change_is_in_a_plan_and_many_share_one(desired: Desired) -> None:
    desired.took = 0.05
    for number in range(300):
        desired.record_changes(_scorer(number))
        time.sleep(0.001)
    wait_for(lambda: sum(map(len, desired.plans)) == 300)
    # A pause of twice its duration follows each plan.
    assert len(desired.plans) < 100
    for (_, end), (next_began, _) in zip(desired.times, desired.times[1:], strict=False):
        assert next_began - end >= PAUSE_FACTOR * desired.took * 0.9


def test_single_change_is_planned_at_once(desired: Desired) -> None:
    desired.record_changes(_scorer(1))
    wait_for(lambda: desired.plans == [{"s1"}])


def test_pause_of_a_busy_namespace_does_not_delay_changes_of_others(desired: Desired) -> None:
    desired._begin_pauses({"tenant"}, 1000.0)
    desired._short_pause_end = -math.inf
    desired.record_changes(_scorer(1, "tenant"))
    desired.record_changes(_scorer(2, "hub"))
    # The plan has the changes of both.
    wait_for(lambda: desired.plans == [{"s1", "s2"}])


def test_changes_of_a_busy_namespace_wait_for_the_end_of_its_pause(desired: Desired) -> None:
    before = time.monotonic()
    desired._begin_pauses({"tenant"}, 1000.0)
    due_times = [desired._find_due_time({name}) - before for name in ("tenant", "hub")]
    assert due_times == pytest.approx([PAUSE_FACTOR * 1000, SHORT_PAUSE_FACTOR * 1000], abs=60)
    assert desired._find_due_time({"tenant", "hub"}) == desired._find_due_time({"hub"})
    desired._begin_pauses({"hub"}, 2000.0)
    # The pause of a namespace ends when it would have ended without the plan for others.
    due_times = [desired._find_due_time({name}) - before for name in ("tenant", "hub")]
    assert due_times == pytest.approx([PAUSE_FACTOR * 1000, PAUSE_FACTOR * 2000], abs=60)


def test_pause_of_a_namespace_includes_the_work_on_clusters(desired: Desired) -> None:
    before = time.monotonic()
    desired._begin_pauses({"tenant", "hub"}, 1000.0, 500.0)
    due_times = [desired._find_due_time({name}) - before for name in ("tenant", "hub", "other")]
    # The hub's own namespace does not wait for work that the scorers of others cause.
    expected_times = [PAUSE_FACTOR * 1500, PAUSE_FACTOR * 1000, SHORT_PAUSE_FACTOR * 1000]
    assert due_times == pytest.approx(expected_times, abs=60)


def test_failed_plan_is_made_again(desired: Desired) -> None:
    desired.failures = 3
    desired.record_changes(_scorer(1))
    wait_for(lambda: desired.plans == [{"s1"}])


def test_expiring_plan_is_followed_by_another(desired: Desired) -> None:
    desired.until = time.time() + 0.3
    desired.record_changes(_scorer(1))
    wait_for(lambda: len(desired.plans) >= 2)
    desired.until = None
    assert desired.plans[1] == frozenset()


def test_changes_before_a_failed_plan_are_in_the_next_plan(desired: Desired) -> None:
    assert desired.defer_until_planned(_scorer(1))
    desired.failures = 1
    with pytest.raises(BackendError):
        desired.update()
    wait_for(lambda: desired.plans == [{"s1"}])
