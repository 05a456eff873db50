"""Flower accepts only events that a worker of this project can have sent."""

from __future__ import annotations

import base64
import json
import math
import sys
import time
from typing import Any
from unittest import mock

import pytest

from dsf.messages import FETCH_TASK
from dsf.redislink import broker, connection
from dsf.redislink.connection import ReadableErrors
from dsf.worker import flower as module
from dsf.worker.application import make_app
from dsf.worker.events import MAX_EVENT_BYTES
from dsf.worker.flower import (
    KnownWorkers,
    filter_event,
    filter_message,
    make_filtered_class,
)
from tests.support.fixtures import SettingsFactory

#: Values that are neither numbers nor short texts nor flags.
STRANGE: list[Any] = [[], {}, [["x"]], {"a": 1}, math.inf, math.nan, -math.inf, 10**400, -(10**30)]


@pytest.fixture
def workers() -> KnownWorkers:
    client = mock.Mock()
    client.hkeys.return_value = ["c1"]
    return KnownWorkers(client)


def _event(**values: Any) -> dict[str, Any]:
    event = {"type": "task-received", "hostname": "spoke@c1", "uuid": "0a-1", "name": FETCH_TASK, "timestamp": 1.7e9}
    return {**event, **values}


@pytest.mark.parametrize(
    "event",
    [
        _event(),
        _event(type="task-started", name=None),
        _event(hostname="results@dynamic-scoring-results-6c5f-x2"),
        {"type": "worker-heartbeat", "hostname": "spoke@c1", "timestamp": 1.7e9, "loadavg": [0.1, 0.2, 0.3]},
    ],
)
def test_kept(workers: KnownWorkers, event: dict[str, Any]) -> None:
    assert filter_event(event, workers) == {name: value for name, value in event.items() if value is not None}


@pytest.mark.parametrize(
    "event",
    [
        None,
        [],
        "text",
        {},
        _event(hostname="spoke@made-up"),
        _event(hostname="<script>alert(1)</script>"),
        _event(hostname="results@<script>"),
        _event(hostname=["spoke@c1"]),
        _event(type="task-<script>"),
        _event(type="worker-made-up"),
        _event(type="task-sent"),
        _event(type=["task-received"]),
        _event(name=[FETCH_TASK]),
        _event(uuid="<script>"),
        _event(uuid=None),
        _event(name="<script>"),
        _event(name="celery.chord"),
        *(_event(timestamp=value) for value in STRANGE),
    ],
)
def test_dropped(workers: KnownWorkers, event: object) -> None:
    assert filter_event(event, workers) is None


def test_made_up_results_workers_are_few(workers: KnownWorkers) -> None:
    assert sum(workers.may_be_ours(f"results@{n}") for n in range(5000)) == 100
    assert workers.may_be_ours("results@7")
    assert workers.may_be_ours("spoke@c1")


@pytest.mark.parametrize("name", ["clock", "utcoffset", "pid", "freq", "runtime", "loadavg", "args", "terminated"])
@pytest.mark.parametrize("value", STRANGE)
def test_fields_of_another_type_are_removed(workers: KnownWorkers, name: str, value: object) -> None:
    kind = "worker-heartbeat" if name == "loadavg" else "task-started"
    assert name not in (filter_event(_event(type=kind, **{name: value}), workers) or {name: ""})


def test_long_texts_are_cut(workers: KnownWorkers) -> None:
    accepted_event = filter_event(_event(result="x" * 50_000, traceback="y" * 50_000, made_up="z"), workers)
    assert accepted_event is not None
    assert (len(accepted_event["result"]), len(accepted_event["traceback"])) == (1024, 4096)
    assert "made_up" not in accepted_event


def test_wide_text_takes_no_more_memory_than_a_plain_one(workers: KnownWorkers) -> None:
    plain = filter_event(_event(result="x" * 5000), workers)
    wide = filter_event(_event(result="\N{GRINNING FACE}" + "x" * 5000), workers)
    assert plain is not None
    assert wide is not None
    assert sys.getsizeof(wide["result"]) < sys.getsizeof(plain["result"]) + 100


def test_made_up_results_workers_make_room_when_they_are_silent(
    workers: KnownWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(workers.may_be_ours(f"results@{n}") for n in range(100)) == 100
    assert not workers.may_be_ours("results@real")
    now = time.monotonic() + 700
    monkeypatch.setattr("dsf.worker.flower.time.monotonic", lambda: now)
    assert workers.may_be_ours("results@real")


def _message(body: object, **values: Any) -> bytes:
    return json.dumps({"body": body, "properties": {}, **values}).encode()


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"null", b"[]", b"{}", b"[" * 50_000, b"\xff", b'{"body": 1}'),
        _message(None),
        _message(json.dumps([_event()]), properties=None),
        _message(json.dumps([_event()]), properties={"body_encoding": "base64"}),
        _message("[" * 50_000),
        _message('{"a": ' + "9" * 5000 + "}"),
        _message(json.dumps([_event()]) + " " * MAX_EVENT_BYTES),
        _message(json.dumps([None, 1, {}, _event(hostname="spoke@made-up")])),
    ],
)
def test_foreign_message_is_emptied(workers: KnownWorkers, data: bytes) -> None:
    assert filter_message(data, workers) == b""


@pytest.mark.parametrize(
    "kind",
    [
        connection.PlainConnection,
        connection.SocketConnection,
        connection.TlsConnection,
        connection.MasterConnection,
        connection.MasterTlsConnection,
    ],
)
def test_message_is_reduced_to_its_events(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checked_kind = make_filtered_class(kind)
    own_instance = checked_kind.__new__(checked_kind)
    own_instance.workers = mock.Mock(**{"may_be_ours.side_effect": lambda name: name == "spoke@c1"})
    events = [_event(clock="x"), _event(hostname="spoke@made-up")]
    data = _message(base64.b64encode(json.dumps(events).encode()).decode(), properties={"body_encoding": "base64"})
    answers: list[object] = [[b"pmessage", b"p", b"c", data], [b"message", b"c", b"["], [b"psubscribe", b"p", 1], 5]
    monkeypatch.setattr(ReadableErrors, "read_response", lambda _: answers.pop(0))
    published = own_instance.read_response()
    assert published[:-1] == [b"pmessage", b"p", b"c"]
    assert json.loads(json.loads(published[-1])["body"]) == [_event()]
    assert [own_instance.read_response() for _ in range(3)] == [[b"message", b"c", b""], [b"psubscribe", b"p", 1], 5]


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://h/0", connection.PlainConnection),
        ("rediss://h/0", connection.TlsConnection),
        ("unix:///run/Redis.sock", connection.SocketConnection),
        ("sentinel://h:26379/0", connection.MasterConnection),
    ],
)
def test_flowers_own_connections_are_checked(
    settings_factory: SettingsFactory, monkeypatch: pytest.MonkeyPatch, url: str, kind: Any
) -> None:
    for name in ("connect", "flower"):
        monkeypatch.setattr(module, name, mock.Mock())
    monkeypatch.setattr(module._FilteredConnection, "workers", None, raising=False)
    app = make_app(settings_factory(role="flower", redis_url=url, redis_sentinel_master="m"))
    module.install(app)
    for name in ("connection_class", "connection_class_ssl"):
        assert name in broker.Channel.from_transport_options
        connection_class = app.conf.broker_transport_options[name]
        assert issubclass(connection_class, module._FilteredConnection)
        assert issubclass(connection_class, kind)
