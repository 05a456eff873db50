"""Fixtures for every test: a real Redis per test process, and settings that are independent of the shell."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator

import hypothesis
import pytest
import redis

from dsf.cli import context
from dsf.settings import ENV_PREFIX, Settings
from tests.support.logs import restored_logging
from tests.support.redisserver import RedisServer
from tests.support.wait import PATIENCE

SettingsFactory = Callable[..., Settings]


# Processes that a shell starts in the background ignore SIGINT, and child processes would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests compare printed texts, so colours are off and the width of texts is fixed, whatever the shell or CI sets.
for _variable in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE", "TERMINAL_WIDTH"):
    os.environ.pop(_variable, None)

# No deadline, because the duration of an example says nothing beside other tests. CI draws the same examples each
# time, so that a failure comes from the change; local runs try new ones.
hypothesis.settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=os.environ.get("CI", "").lower() == "true",
)
hypothesis.settings.load_profile("busy")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze modules and collected tests: they stay until the end, and garbage collection would scan them in vain."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Restore logging after each test."""
    with restored_logging():
        yield


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """Restore signal handlers after each test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _own_context() -> Iterator[None]:
    """Restore the chosen demo after each test."""
    yield
    context.select_demo(None)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A real server, one per test process. Tests that kill Redis start their own."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of an empty database."""
    client = redis.Redis.from_url(redis_server.url, decode_responses=True, socket_timeout=PATIENCE)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
def redis_url(redis_server: RedisServer, redis_client: redis.Redis) -> str:
    """URL of an empty database, for processes and clients of the code under test."""
    assert redis_client.ping()
    return redis_server.url


@pytest.fixture
def settings_factory(monkeypatch: pytest.MonkeyPatch) -> SettingsFactory:
    """Return `settings_factory(role="hub", ...) -> Settings`, which ignores DSF_ variables of the shell."""
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(name)

    def make(**values: object) -> Settings:
        return Settings(**values)  # type: ignore[arg-type]

    return make
