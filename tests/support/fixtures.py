"""Fixtures for every test: a real Redis per test process, and settings that know nothing of the caller's shell."""

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


# A shell that starts us in the background makes us ignore SIGINT, and every process started here would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests read what is shown: no colours, which a shell or GitHub's runners may ask for, and no other width of texts.
for _variable in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TTY_COMPATIBLE", "TERMINAL_WIDTH"):
    os.environ.pop(_variable, None)

# How fast an example runs says nothing of the code beside other tests. CI draws the same examples each time:
# a failure there is one of the change, and a person's machine goes on looking for new ones.
hypothesis.settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=os.environ.get("CI", "").lower() == "true",
)
hypothesis.settings.load_profile("busy")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests are there until the end: a look for garbage among them takes time and finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A test that sets up logging does so for itself alone."""
    with restored_logging():
        yield


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """A program that a test runs in this process handles signals for that test alone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _own_context() -> Iterator[None]:
    """A command that a test runs in this process chooses a demo for that test alone."""
    yield
    context.select_demo(None)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A real server, one per test process (xdist starts one per worker). Tests that kill Redis start their own."""
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
    """`settings_factory(role="hub", ...) -> Settings`, untouched by DSF_ variables of the shell."""
    for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        monkeypatch.delenv(name)

    def make(**values: object) -> Settings:
        return Settings(**values)  # type: ignore[arg-type]

    return make
