"""The hub's clock as the agent sees it."""

from __future__ import annotations

import time
from typing import cast

import pytest
import redis

from dsf.agent.ticks import HubClock
from tests.support.wait import wait_for


@pytest.mark.parametrize("off", [-90.0, 0.0, 90.0])
def test_the_difference_is_measured(redis_client: redis.Redis, off: float) -> None:
    hub = HubClock(redis_client)
    agent = HubClock(redis_client, clock=lambda: hub.now() + off)
    assert agent.offset == 0.0
    # An answer that takes long is of no use, or of less.
    wait_for(lambda: agent.measure() and agent.offset == pytest.approx(-off, abs=0.5))
    wait_for(lambda: agent.now() == pytest.approx(hub.now(), abs=0.5))


def test_it_measures_by_itself_and_ends(redis_client: redis.Redis) -> None:
    hub = HubClock(redis_client)
    agent = HubClock(redis_client, clock=lambda: hub.now() - 60)
    agent.start()
    wait_for(lambda: agent.offset > 59, message="no measurement")
    agent.stop()


def test_a_clock_that_is_set_is_measured_at_once(redis_client: redis.Redis) -> None:
    hub, off = HubClock(redis_client), [0.0]
    agent = HubClock(redis_client, clock=lambda: time.time() + off[0])
    agent.start()
    try:
        wait_for(lambda: agent.offset != 0.0, message="no measurement")
        off[0] = 90.0
        wait_for(lambda: agent.now() == pytest.approx(hub.now(), abs=0.5), 20)
    finally:
        agent.stop()


def test_without_the_right_to_ask_the_own_clock_counts(redis_client: redis.Redis) -> None:
    redis_client.acl_setuser("timeless", enabled=True, nopass=True, commands=["+ping"], reset=True)
    try:
        info = redis_client.connection_pool.connection_kwargs
        with redis.Redis(host=info["host"], port=info["port"], username="timeless", password="x") as client:
            agent = HubClock(client)
            with pytest.raises(redis.exceptions.NoPermissionError):
                agent.measure()
            assert agent.offset == 0.0
    finally:
        redis_client.acl_deluser("timeless")


class Distant:
    """A Redis that answers at its own time, `way` seconds after it was asked and as long before the answer is here."""

    def __init__(self, way: float) -> None:
        self.way = way
        self.passed = 0.0

    def ping(self) -> bool:
        return True

    def time(self) -> tuple[int, int]:
        self.passed += self.way
        answer = int(1000 + self.passed), round((self.passed % 1) * 1e6)
        self.passed += self.way
        return answer


@pytest.mark.parametrize(("way", "is_of_use"), [(0.0, True), (0.75, True), (1.25, False)])
def test_the_way_to_the_hub_is_no_difference(monkeypatch: pytest.MonkeyPatch, way: float, is_of_use: bool) -> None:
    hub = Distant(way)
    monkeypatch.setattr(time, "monotonic", lambda: hub.passed)
    agent = HubClock(cast("redis.Redis", hub), clock=lambda: 940.0 + hub.passed)
    assert agent.measure() is is_of_use
    assert agent.offset == pytest.approx(60.0 if is_of_use else 0.0)
