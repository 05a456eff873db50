"""Events for Flower are sent in messages that it accepts, without blocking."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
import redis
from structlog.testing import capture_logs

from dsf.worker import events
from dsf.worker.application import make_app
from dsf.worker.events import MAX_EVENT_BYTES, GatheredEvents
from tests.support.fixtures import SettingsFactory
from tests.support.wait import wait_for


class Wire:
    """Records messages of events, or fails with `error` while that is set."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.tries = 0
        self.sizes: list[int] = []
        self.messages: list[Any] = []

    def publish(self, message: str, **_: Any) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.sizes.append(len(message))
        self.messages += json.loads(message)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    event_wire = Wire()
    monkeypatch.setattr(kombu.Producer, "publish", lambda _, *args, **options: event_wire.publish(*args, **options))
    return event_wire


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
    """Otherwise each of many messages would wait for the time-outs of a silent Redis."""
    wire.error = error
    some_tasks(dispatcher, range(1000))
    with capture_logs() as logs:
        for tries in (1, 2):
            # Celery sends heartbeats this way.
            dispatcher.send("worker-heartbeat", retry=True)
            assert wire.tries == 2 * tries - 1
            dispatcher.flush()
            assert wire.tries == 2 * tries
            some_tasks(dispatcher, range(10))
    wire.error = None
    dispatcher.flush()
    assert [event["uuid"] for event in wire.messages] == list(range(10))
    assert len(logs) == warnings


def test_events_are_sent_in_messages_that_flower_takes(dispatcher: Any, wire: Wire) -> None:
    some_tasks(dispatcher, range(1000))
    dispatcher.flush()
    assert [event["uuid"] for event in wire.messages] == list(range(1000))
    assert len(wire.sizes) > 1
    assert max(wire.sizes) < MAX_EVENT_BYTES


def test_event_that_is_not_json_does_not_block_later_events(dispatcher: Any, wire: Wire) -> None:
    for value in (object(), {(1, 2): 3}):
        dispatcher.send("task-received", uuid=0, value=value)
        dispatcher.send("worker-heartbeat", value=value)
        dispatcher.flush()
    dispatcher.send("task-received", uuid=1, value="\ud800")
    dispatcher.flush()
    assert [event["uuid"] for event in wire.messages] == [1]


def test_events_are_never_retried(dispatcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    retry_options: list[object] = []
    monkeypatch.setattr(kombu.Producer, "publish", lambda *_, **options: retry_options.append(options["retry"]))
    dispatcher.send("worker-heartbeat", retry=True)
    some_tasks(dispatcher, range(3))
    dispatcher.flush()
    assert retry_options == [False, False]


def test_worker_is_announced_once_per_connection_and_then_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_INTERVAL", 0.05)
    monkeypatch.setattr(events, "_GATHER_SECONDS", 0.01)
    for signal in ("task_prerun", "task_success", "task_failure", "task_retry"):
        # Handlers of signals would outlive this test.
        monkeypatch.setattr(getattr(events.signals, signal), "connect", lambda *_, **__: None)
    kinds: list[str] = []
    consumer = SimpleNamespace(pool=SimpleNamespace(num_processes=4), call_soon=lambda _: None)
    sender = GatheredEvents(consumer)
    try:
        for expected_count in (3, 6):
            consumer.event_dispatcher = SimpleNamespace(
                publisher=None, send=lambda kind, **_: kinds.append(kind), flush=lambda: None
            )
            sender.start(consumer)
            wait_for(lambda count=expected_count: len(kinds) >= count)  # type: ignore[misc]
    finally:
        sender.shutdown(consumer)
    first_kind, *further_kinds, last_kind = kinds
    assert (first_kind, last_kind) == ("worker-online", "worker-offline")
    assert further_kinds.count("worker-online") == 1, "one for the second connection"
    assert set(further_kinds) == {"worker-online", "worker-heartbeat"}
