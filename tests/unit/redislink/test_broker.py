"""Celery's connections: short waits that differ, and an address without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
import redis
from structlog.testing import capture_logs

from dsf.celery import make_app
from dsf.redislink import broker
from tests.conftest import SettingsFactory

SECRETS = ("some-password", "some-user")


@pytest.mark.parametrize("role", ["agent", "results", "beat", "exporter"])
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://some-user:some-password@redis.example:6380/0", "redis://redis.example:6380/0"),
        ("rediss://:some-password@redis.example/0", "rediss://redis.example:6379/0"),
        (
            "sentinel://:some-password@one:26379;sentinel://two:26379/0",
            "sentinel://one:26379/0;sentinel://two:26379/0",
        ),
        ("redis+socket://:some-password@/run/Redis.sock?virtual_host=1", "unix:///run/Redis.sock?db=1"),
    ],
)
def test_logs_name_the_server_and_no_secret(settings_factory: SettingsFactory, role: str, url: str, shown: str) -> None:
    app = make_app(settings_factory(role=role, cluster="c1", redis_url=url, redis_sentinel_master="hub"))
    with app.connection_for_read() as connection:
        assert isinstance(connection, broker.Connection)
        assert connection.as_uri() == shown
        assert not any(secret in connection.as_uri() for secret in SECRETS)
    app.close()


def test_flower_gets_the_password_when_it_asks_for_it(settings_factory: SettingsFactory) -> None:
    app = make_app(settings_factory(role="flower", redis_url="redis://some-user:some-password@redis.example/0"))
    with app.connection() as connection:
        assert connection.as_uri(include_password=True) == "redis://some-user:some-password@redis.example:6379/0"
        assert connection.as_uri() == "redis://redis.example:6379/0"
    app.close()


def test_flowers_page_of_queues_gets_a_socket_as_it_takes_one(settings_factory: SettingsFactory) -> None:
    app = make_app(settings_factory(role="flower", redis_url="unix://:some%40password@/run/Redis.sock"))
    with app.connection() as connection:
        assert connection.as_uri(include_password=True) == "redis+socket://:some%40password@/run/Redis.sock"
        assert connection.as_uri() == "unix:///run/Redis.sock?db=0"
    app.close()


def test_waits_end_where_the_setting_says_and_differ(
    settings_factory: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[dict[str, float]] = []

    def connect(self: kombu.Connection, *_: Any, **options: Any) -> kombu.Connection:
        waits.append(options)
        return self

    monkeypatch.setattr(kombu.Connection, "ensure_connection", connect)
    app = make_app(settings_factory(role="agent", cluster="c1"))
    with app.connection_for_read() as connection:
        for _ in range(20):
            connection.ensure_connection()
        connection.ensure_connection(interval_max=1)
    app.close()
    assert waits.pop()["interval_max"] == 1
    assert all(2.5 <= one["interval_max"] <= 5 and one["interval_start"] <= 1 for one in waits)
    assert len({one["interval_max"] for one in waits}) > 10


def test_a_connection_of_somebody_else_is_kombus_own() -> None:
    with broker.Connection("memory://") as connection:
        assert connection.as_uri() == kombu.Connection("memory://").as_uri()
        assert connection.ensure_connection() is connection


class Wire:
    """Takes messages of events, or fails with `error` while that is set."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.tries = 0
        self.sizes: list[int] = []
        self.taken: list[Any] = []

    def publish(self, message: str, **_: Any) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.sizes.append(len(message))
        self.taken += json.loads(message)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    made = Wire()
    monkeypatch.setattr(kombu.Producer, "publish", lambda _, *args, **options: made.publish(*args, **options))
    return made


@pytest.fixture
def dispatcher(settings_factory: SettingsFactory, wire: Wire) -> Iterator[Any]:
    app = make_app(settings_factory(role="agent", cluster="c1"))
    with app.connection_for_write() as connection:
        yield app.events.Dispatcher(
            connection, hostname="spoke@c1", enabled=True, buffer_group=["task"], buffer_limit=10_000
        )
    app.close()


def some_tasks(dispatcher: Any, numbers: range) -> None:
    for number in numbers:
        dispatcher.send("task-received", uuid=number, args="x" * 200)


@pytest.mark.parametrize(
    ("error", "warnings"),
    [
        (redis.TimeoutError("silent"), 0),
        (redis.ConnectionError("away"), 0),
        (redis.exceptions.NoPermissionError("No permissions to access a channel"), 1),
    ],
)
def test_events_that_cannot_be_sent_are_tried_once_and_dropped(
    dispatcher: Any, wire: Wire, error: Exception, warnings: int
) -> None:
    """However many messages they are: at a silent Redis each would wait out the time-outs."""
    wire.error = error
    some_tasks(dispatcher, range(1000))
    with capture_logs() as logs:
        for tries in (1, 2):
            # As Celery's heartbeats are sent.
            dispatcher.send("worker-heartbeat", retry=True)
            assert wire.tries == 2 * tries - 1
            dispatcher.flush()
            assert wire.tries == 2 * tries
            some_tasks(dispatcher, range(10))
    wire.error = None
    dispatcher.flush()
    assert [event["uuid"] for event in wire.taken] == list(range(10))
    assert len(logs) == warnings


def test_events_are_sent_in_messages_that_flower_takes(dispatcher: Any, wire: Wire) -> None:
    some_tasks(dispatcher, range(1000))
    dispatcher.flush()
    assert [event["uuid"] for event in wire.taken] == list(range(1000))
    assert len(wire.sizes) > 1
    assert max(wire.sizes) < broker.MOST_EVENT_BYTES


def test_an_event_that_is_no_json_stops_no_later_ones(dispatcher: Any, wire: Wire) -> None:
    for value in (object(), {(1, 2): 3}):
        dispatcher.send("task-received", uuid=0, value=value)
        dispatcher.send("worker-heartbeat", value=value)
        dispatcher.flush()
    dispatcher.send("task-received", uuid=1, value="\ud800")
    dispatcher.flush()
    assert [event["uuid"] for event in wire.taken] == [1]


def test_no_event_is_tried_again_whatever_celery_asks_for(dispatcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(kombu.Producer, "publish", lambda *_, **options: asked.append(options["retry"]))
    dispatcher.send("worker-heartbeat", retry=True)
    some_tasks(dispatcher, range(3))
    dispatcher.flush()
    assert asked == [False, False]
