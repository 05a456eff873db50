"""The hub's clock as a process measures it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import cast

import pytest
import redis

from dsf.process import hubclock
from dsf.process.hubclock import HubClock
from tests.support.wait import wait_for


@pytest.mark.parametrize("off", [-90.0, 0.0, 90.0])
def test_hub_clock_measures_the_difference(redis_client: redis.Redis, off: float) -> None:
    clock = HubClock(redis_client, own_clock=lambda: time.time() + off)
    assert clock.offset() == 0.0
    assert clock.now() == pytest.approx(time.time() + off, abs=0.5)
    # A slow response is discarded or counts less.
    wait_for(lambda: clock.measure() and clock.offset() == pytest.approx(-off, abs=0.5))
    wait_for(lambda: clock.now() == pytest.approx(hubclock.read_hub_time(redis_client), abs=0.5))


def test_hub_clock_measures_in_a_thread_until_it_is_stopped(redis_client: redis.Redis) -> None:
    reported: list[float] = []
    clock = HubClock(
        redis_client, own_clock=lambda: time.time() - 60, on_measured=lambda clock: reported.append(clock.offset())
    )
    clock.start()
    clock.wait()
    assert clock.offset() > 59
    clock.stop()
    assert reported


def test_hub_clock_does_not_move_with_the_machines_own(redis_client: redis.Redis) -> None:
    off = [0.0]
    clock = HubClock(redis_client, own_clock=lambda: time.time() + off[0])
    wait_for(clock.measure)
    off[0] = 7200.0
    assert clock.now() == pytest.approx(time.time(), abs=0.5)
    assert clock.offset() == pytest.approx(-7200, abs=0.5)


def test_hub_clock_is_measured_again_after_its_interval(redis_client: redis.Redis) -> None:
    measured: list[HubClock] = []
    clock = HubClock(redis_client, interval=3600, on_measured=measured.append)
    clock.keep_measured()
    clock.keep_measured()
    assert len(measured) == 1


@pytest.fixture
def _own_clock_afterwards() -> Iterator[None]:
    yield
    hubclock.use(None)


@pytest.mark.usefixtures("_own_clock_afterwards")
def test_now_is_the_time_of_the_clock_in_use(redis_client: redis.Redis) -> None:
    clock = HubClock(redis_client, own_clock=lambda: time.time() - 600)
    wait_for(clock.measure)
    hubclock.use(clock)
    assert hubclock.now() == pytest.approx(time.time(), abs=0.5)
    hubclock.use(None)
    assert hubclock.now() == pytest.approx(time.time(), abs=0.5)


def test_hub_clock_without_the_right_to_ask_is_the_machines_own(redis_client: redis.Redis) -> None:
    redis_client.acl_setuser("timeless", enabled=True, nopass=True, commands=["+ping"], reset=True)
    try:
        info = redis_client.connection_pool.connection_kwargs
        with redis.Redis(host=info["host"], port=info["port"], username="timeless", password="x") as client:
            agent = HubClock(client)
            with pytest.raises(redis.exceptions.NoPermissionError):
                agent.measure()
            assert agent.offset() == 0.0
    finally:
        redis_client.acl_deluser("timeless")


class Distant:
    """A Redis with its own clock and a latency of `way` seconds in each direction."""

    def __init__(self, way: float) -> None:
        self.way = way
        self.passed = 0.0
        self.ahead = 0.0

    def time(self) -> tuple[int, int]:
        self.passed += self.way
        at = 1000 + self.passed + self.ahead
        answer = int(at), round((at % 1) * 1e6)
        self.passed += self.way
        return answer


@pytest.mark.parametrize(("way", "is_used"), [(0.0, True), (0.75, True), (1.25, False)])
def test_hub_clock_subtracts_the_latency_of_redis(monkeypatch: pytest.MonkeyPatch, way: float, is_used: bool) -> None:
    server = Distant(way)
    monkeypatch.setattr(time, "monotonic", lambda: server.passed)
    clock = HubClock(cast("redis.Redis", server), own_clock=lambda: 940.0 + server.passed)
    assert clock.measure() is is_used
    assert clock.offset() == pytest.approx(60.0 if is_used else 0.0)


def test_hub_clock_keeps_its_time_within_the_error_of_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Distant(0.5)
    monkeypatch.setattr(time, "monotonic", lambda: server.passed)
    clock = HubClock(cast("redis.Redis", server), own_clock=lambda: server.passed)
    clock.measure()
    before = clock.offset()
    server.ahead = 0.3
    clock.measure()
    assert clock.offset() == before
    server.ahead = 3.0
    clock.measure()
    assert clock.offset() == pytest.approx(before + 3)
