"""Celery's connections: short waits that differ, and an address without secrets."""

from __future__ import annotations

import json
from typing import Any

import kombu
import pytest
import redis

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
    app = make_app(settings_factory(role="agent", cluster="c1", redis_reconnect_max_wait=4))
    with app.connection_for_read() as connection:
        for _ in range(20):
            connection.ensure_connection()
        connection.ensure_connection(interval_max=1)
    app.close()
    assert waits.pop()["interval_max"] == 1
    assert all(2 <= one["interval_max"] <= 4 and one["interval_start"] <= 1 for one in waits)
    assert len({one["interval_max"] for one in waits}) > 10


def test_a_connection_of_somebody_else_is_kombus_own() -> None:
    with broker.Connection("memory://") as connection:
        assert connection.as_uri() == kombu.Connection("memory://").as_uri()
        assert connection.ensure_connection() is connection


class Line:
    """Takes messages of events, or fails with `error` while that is set."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.tries = 0
        self.taken: list[Any] = []

    def publish(self, message: Any, **_: Any) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        events = json.loads(message)
        self.taken += events if isinstance(events, list) else [events]


def a_dispatcher(settings_factory: SettingsFactory, line: Line) -> broker.PromptDispatcher:
    app = make_app(settings_factory(role="agent", cluster="c1"))
    made: broker.PromptDispatcher = app.events.Dispatcher(
        hostname="spoke@c1", enabled=True, buffer_group=["task"], buffer_limit=10_000
    )
    made.producer = line
    return made


def some_tasks(dispatcher: broker.PromptDispatcher, numbers: range) -> None:
    for number in numbers:
        dispatcher.send("task-received", uuid=number, args="x" * 200)


def test_a_silent_redis_is_waited_for_once(settings_factory: SettingsFactory) -> None:
    """However many messages what has come together is: each would wait out the time-outs."""
    line = Line()
    dispatcher = a_dispatcher(settings_factory, line)
    line.error = redis.TimeoutError("silent")
    some_tasks(dispatcher, range(1000))
    for tries in (1, 2):
        dispatcher.flush()
        assert line.tries == tries
    some_tasks(dispatcher, range(1000, 1010))
    line.error = None
    dispatcher.flush()
    assert [event["uuid"] for event in line.taken] == list(range(1010))
    assert not dispatcher._outbound_buffer


def test_events_that_are_refused_are_not_kept(settings_factory: SettingsFactory) -> None:
    line = Line()
    dispatcher = a_dispatcher(settings_factory, line)
    line.error = redis.exceptions.NoPermissionError("No permissions to access a channel")
    for _ in range(3):
        some_tasks(dispatcher, range(100))
        dispatcher.flush()
        dispatcher.send("worker-heartbeat")
    assert not dispatcher._outbound_buffer


def test_an_event_that_is_no_json_is_dropped_alone(settings_factory: SettingsFactory) -> None:
    line = Line()
    dispatcher = a_dispatcher(settings_factory, line)
    for number, value in enumerate([1, object(), {(1, 2): 3}, "\ud800"]):
        dispatcher.send("task-received", uuid=number, value=value)
    dispatcher.send("worker-heartbeat", value=object())
    dispatcher.flush()
    assert [event["uuid"] for event in line.taken] == [0, 3]


def test_of_events_that_cannot_be_sent_the_newest_are_kept(settings_factory: SettingsFactory) -> None:
    line = Line()
    dispatcher = a_dispatcher(settings_factory, line)
    line.error = redis.ConnectionError("away")
    for number in range(1000):
        dispatcher.send("worker-heartbeat", number=number)
    assert len(dispatcher._outbound_buffer) == broker.MOST_KEPT
    line.error = None
    dispatcher.flush()
    assert [event["number"] for event in line.taken] == list(range(1000 - broker.MOST_KEPT, 1000))


def test_what_tasks_say_from_one_connection_to_the_next_is_sent(settings_factory: SettingsFactory) -> None:
    line = Line()
    old, new = (a_dispatcher(settings_factory, line) for _ in range(2))
    some_tasks(old, range(3))
    old.disable()
    # A stage ends, and the next one begins in its thread.
    some_tasks(old, range(3, 5))
    # As Celery does with each new connection.
    new.extend_buffer(old)
    some_tasks(old, range(5, 7))
    some_tasks(new, range(7, 9))
    new.flush()
    old.flush()
    assert [event["uuid"] for event in line.taken] == list(range(9))
