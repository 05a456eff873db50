"""An attacker with the credential of one cluster floods Redis with every permitted command: the other clusters go on,
and the flood ends.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
import redis

from dsf import keys
from tests.integration.security.fleet import CLUSTERS, Fleet
from tests.integration.security.running.test_credentials import dsf

_MEGABYTE = 1024 * 1024
#: Memory reserved for the hub, in addition to the current use.
_ROOM = 48 * _MEGABYTE
_LARGEST = 2 * _MEGABYTE


class Thief:
    """Repeats some actions, each on a new connection, until it is stopped or cannot continue."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._stop = threading.Event()
        self.done: dict[str, int] = {}
        things: dict[str, Callable[[redis.Redis, int], object]] = {
            "large mail": lambda r, n: r.set(keys.mail_slot("c1", n % 8), b"{" + b"x" * (_LARGEST - 1)),
            "garbage": lambda r, n: self._put(r, 8 + n % 8, b"20 bytes of garbage."),
            "mail that looks good": lambda r, n: self._put(r, n % 16, b'{"headers":' + b"x" * 5000),
            "large flags": lambda r, _: r.set(keys.mail_flag("c1"), b"x" * _LARGEST),
            "events": lambda r, _: r.publish("/0.celeryev/worker.heartbeat", b"x" * 100_000),
            "own queue": lambda r, n: r.lpush(keys.spoke_queue("c1"), b"x" * 100_000),
            "results queue": lambda r, n: r.lpush(keys.RESULTS_QUEUE, b"x" * 100_000),
        }
        self._threads = [
            threading.Thread(target=self._do, args=(name, thing), daemon=True) for name, thing in things.items()
        ]

    def _put(self, client: redis.Redis, slot: int, value: bytes) -> None:
        client.set(keys.mail_slot("c1", slot), value)
        client.set(keys.mail_flag("c1"), 1)

    def _do(self, name: str, thing: Callable[[redis.Redis, int], object]) -> None:
        self.done[name] = 0
        with contextlib.suppress(redis.ConnectionError, redis.AuthenticationError):
            client = self._fleet.spoke("c1")
            while not self._stop.is_set():
                try:
                    thing(client, self.done[name])
                    self.done[name] += 1
                except (redis.exceptions.NoPermissionError, redis.exceptions.OutOfMemoryError):
                    self._stop.wait(0.05)

    def is_at_work(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def __enter__(self) -> Thief:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def small(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet on a Redis with little room."""
    used_bytes = int(fleet.admin.info("memory")["used_memory"])
    fleet.admin.config_set("maxmemory", used_bytes + _ROOM)
    fleet.admin.config_set("proto-max-bulk-len", 4 * _MEGABYTE)
    try:
        yield fleet
    finally:
        fleet.admin.config_set("maxmemory", 0)
        fleet.admin.config_set("proto-max-bulk-len", 512 * _MEGABYTE)


def _fill(client: redis.Redis, queue: str) -> None:
    """Push until there is no more room. Raises OutOfMemoryError then."""
    for _ in range(1000):
        client.lpush(queue, *[b"x" * _MEGABYTE] * 4)


def _cycles(fleet: Fleet, cluster: str, number: int) -> None:
    """Wait for so many more good cycles."""
    before = fleet.state(cluster).count("ok")
    fleet.until(lambda: fleet.state(cluster).count("ok") >= before + number, f"{number} cycles of {cluster}", 60)


def test_flood_of_one_cluster_leaves_others_unaffected_and_ends_with_its_revocation(small: Fleet) -> None:
    fleet = small
    lost = fleet.state(CLUSTERS[1]).count("lost")
    with Thief(fleet) as thief:
        _cycles(fleet, CLUSTERS[1], 5)
        assert fleet.state(CLUSTERS[1]).count("lost") == lost
        fleet.until(lambda: int(str(fleet.admin.hget(keys.REJECTED_MAIL, "c1") or 0)) > 20, "mail that is refused")
        may = ("large mail", "garbage", "mail that looks good", "large flags", "events")
        fleet.until(lambda: min(thief.done.get(name, 0) for name in may) > 10, "a flood of everything")
        assert (thief.done["results queue"], thief.done["own queue"]) == (0, 0)
        dsf(fleet, "revoke", "--cluster", "c1", "--wait", "120")
        # Its connections are closed, and it cannot reconnect.
        fleet.until(lambda: not thief.is_at_work(), "the thief to be out", 30)
    _cycles(fleet, "c1", 2)
    _cycles(fleet, CLUSTERS[1], 2)
    fleet.until(lambda: fleet.admin.exists(*keys.mail_slots("c1")) == 0, "nothing to be left")


def test_filled_redis_recovers_after_revocation(small: Fleet) -> None:
    """However that was done: no cluster may."""
    fleet = small
    before = {name: len(fleet.log(name)) for name in ("results", "beat", "controller")}
    # More than fits, and faster than the hub polls. The agent would take some of it.
    agent = fleet.process("agent-c1")
    agent.signal(signal.SIGSTOP)
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            _fill(fleet.admin, keys.spoke_queue("c1"))
    finally:
        agent.signal(signal.SIGCONT)
    dsf(fleet, "revoke", "--cluster", "c1", "--wait", "120")
    _cycles(fleet, CLUSTERS[1], 2)
    _cycles(fleet, "c1", 2)
    for name, length in before.items():
        assert "Traceback" not in fleet.log(name)[length:]
        assert "RestartFreqExceeded" not in fleet.log(name)[length:]
