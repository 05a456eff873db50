"""Logins that fail are limited, and lock nobody else out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dsf.errors import AccessError
from dsf.web.access import PageUser
from dsf.web.sessions import Tries

GOOD = "good"
HERE, THERE = "127.0.0.1", "10.0.0.1"


class Door:
    """Knows one token."""

    def __init__(self) -> None:
        self.good = {GOOD}
        self.asked = 0
        self.before: Callable[[], object] = lambda: None

    def login(self, token: str) -> PageUser:
        self.before()
        self.asked += 1
        if token not in self.good:
            raise AccessError("no", 401)
        return PageUser("ann")


class World:
    """Time is what the test says."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.door = Door()
        self.tries = Tries(lambda: self.now)

    def status(self, token: str, address: str = HERE) -> int:
        try:
            self.tries.login(self.door.login, address, token)
        except AccessError as error:
            return error.status
        return 200


@pytest.fixture
def world() -> World:
    return World()


def test_a_stale_token_locks_only_itself_out(world: World) -> None:
    """A script that polls every ten seconds, and all others come from its address."""
    seen = []
    for _ in range(12):
        seen.append(world.status("stale"))
        world.now += 5
        assert world.status(GOOD) == 200
    assert seen == [401] * 5 + [429] * 7
    world.now += 61
    assert world.status("stale") == 401


def test_a_new_token_gets_in_whatever_others_failed(world: World) -> None:
    for number in range(60):
        world.status(f"stale{number % 12}")
        world.now += 0.3
    assert world.status(GOOD) == 200


def test_failures_are_limited_and_logins_are_not(world: World) -> None:
    """20 wrong tokens a second from one address, behind which are 60 people who log in for the first time."""
    world.door.good = {f"person{number}" for number in range(60)}
    guesses = []
    for number in range(60):
        guesses += [world.status(f"guess{number}-{which}") for which in range(20)]
        assert world.status(f"person{number}") == 200
        world.now += 1
    # Five new tokens a minute are told that they are wrong.
    assert guesses == [401] * 5 + [429] * (len(guesses) - 5)
    assert world.status("other", THERE) == 401
    world.now += 61
    assert world.status("guess") == 401


@pytest.mark.parametrize("tokens", [["same"] * 15, [f"guess{number}" for number in range(15)]])
def test_failures_at_the_same_time_are_counted_one_by_one(world: World, tokens: list[str]) -> None:
    together = threading.Barrier(15)
    world.door.before = lambda: together.wait(30)
    with ThreadPoolExecutor(15) as pool:
        found = sorted(pool.map(world.status, tokens))
    assert found == [401] * 5 + [429] * 10


def test_a_token_that_was_good_is_limited_when_it_is_not_any_more(world: World) -> None:
    assert world.status(GOOD) == 200
    world.door.good.clear()
    assert [world.status(GOOD) for _ in range(6)] == [401] * 5 + [429]
