"""Messages pushed into an agent's queue are reduced to a clean tick or refused."""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from typing import Any

import kombu.utils.json
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.transport.virtual import Base64, Channel

import dsf.log
from dsf.agent import ticks
from dsf.agent.ticks import Message
from dsf.store.ticks import make_tick_message

RUN = "1718600000000-0123abcd"
ARGS = ["sample", RUN, 4102444800.0]
SIGNATURE = {"task": "dsf.cycle", "args": ["other"], "kwargs": {}, "options": {"queue": "spoke.c2"}}


class _Channel:
    """The part of a channel that kombu's message needs."""

    codecs = Channel.codecs

    def decode_body(self, body: Any, encoding: str | None = None) -> Any:
        return Base64().decode(body) if encoding == "base64" else body


def message(body: object = None, task: object = "dsf.cycle", **headers: object) -> dict[str, Any]:
    return {
        "body": json.dumps([ARGS, {}, {}] if body is None else body),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": task, "id": "an-id"} | headers,
        "properties": {"delivery_info": {"exchange": "x", "routing_key": "elsewhere"}, "delivery_tag": "mine"},
    }


def reduce_message(document: object) -> Any:
    """Return the message that Celery receives for a pushed document."""
    pushed: Any = Message(json.loads(json.dumps(document)), channel=_Channel())
    ticks.reduce_to_tick(pushed, "dsf.cycle")
    return pushed


def tick_arguments(document: object) -> Any:
    """Return the arguments of the reduced message and check that no other fields remain."""
    tick_message = reduce_message(document)
    args, kwargs, embed = tick_message.payload
    assert (kwargs, any(embed.values())) == ({}, False)
    assert tick_message.headers.keys() == {"lang", "task", "id", "root_id", "argsrepr", "kwargsrepr", "tick"}
    assert tick_message.headers["tick"] == [args[0], args[2]]
    assert tick_message.headers["task"] == "dsf.cycle"
    return args


def test_tick_is_reduced_to_its_arguments() -> None:
    tick = json.loads(make_tick_message("c1", *ARGS))  # type: ignore[arg-type]
    reduced_message = reduce_message(tick)
    assert tick_arguments(tick) == ARGS
    assert reduced_message.headers["id"] == reduced_message.headers["root_id"] == tick["headers"]["id"]
    assert reduced_message.headers["argsrepr"] == f"('sample', '{RUN}', 4102444800.0)"


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (["sample"], {}),
        (["sample", None, None], {}),
        ([], {"scorer": "sample"}),
        (["sample"], {"run_id": None, "deadline": None}),
    ],
)
def test_manual_call_becomes_a_tick_without_run(args: list[object], kwargs: dict[str, object]) -> None:
    assert tick_arguments(message([args, kwargs, {}])) == ["sample", None, None]
    packed = message()
    packed["body"] = base64.b64encode(json.dumps([args, kwargs, {}]).encode()).decode()
    packed["properties"]["body_encoding"] = "base64"
    assert tick_arguments(packed) == ["sample", None, None]


def test_unknown_headers_and_properties_are_removed() -> None:
    pushed = message(
        [ARGS, {}, {"chain": [SIGNATURE], "callbacks": [SIGNATURE], "errbacks": [SIGNATURE], "chord": SIGNATURE}],
        eta="2100-01-01",
        expires="soon",
        retries="2",
        group={"no": "text"},
        shadow=["no", "text"],
        timelimit="soon",
        argsrepr=7,
        id=["no", "text"],
        root_id={"no": "text"},
        parent_id="no\nid",
        reply_to="x",
        compression="zlib",
    )
    assert tick_arguments(pushed) == ARGS
    tick_message = reduce_message(pushed)
    assert len(tick_message.headers["id"]) == 36
    assert tick_message.properties.keys() == {"correlation_id", "priority"}


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "text",
        {},
        {**message(), "body": None},
        {**message(), "body": [1]},
        {**message(), "body": "text"},
        {**message(), "headers": None},
        {**message(), "headers": []},
        {**message(), "properties": []},
        message(None, None),
        message(None, ["dsf.cycle"]),
        message([[], {}, {}]),
        message([[*ARGS, "more"], {}, {}]),
        message([["sample"], {"scorer": "other"}, {}]),
        message([["sample"], {"url": "http://x"}, {}]),
        message([["Sample"], {}, {}]),
        message([[{"sourceEndpoint": "http://x"}], {}, {}]),
        message([["sample", "../../etc/passwd"], {}, {}]),
        message([["sample", 7], {}, {}]),
        message([["sample", RUN, "soon"], {}, {}]),
        message([["sample", RUN, True], {}, {}]),
        message([["sample", RUN, -1], {}, {}]),
        message([["sample", RUN, 1e308], {}, {}]),
        message([["sample", RUN, float("nan")], {}, {}]),
        message({"args": ARGS}),
        message([ARGS]),
        message([ARGS, {}, "x" * 20_000]),
        {"task": "dsf.cycle", "id": "x", "args": ARGS, "kwargs": {}},
    ],
)
def test_refused(document: object) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        reduce_message(document)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["sample", RUN]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_HEADERS = ("id", "task", "eta", "expires", "retries", "root_id", "parent_id", "shadow", "group", "argsrepr")


@given(_JSON, st.dictionaries(st.sampled_from(_HEADERS), _JSON), _JSON)
def test_pushed_message_is_a_clean_tick_or_refused(parts: object, headers: dict[str, Any], properties: object) -> None:
    pushed = message(parts, **headers)
    pushed["properties"] = properties
    with contextlib.suppress(Exception):
        scorer, run, _ = tick_arguments(pushed)
        assert scorer == "sample"
        assert run in (None, RUN)


def test_compressed_message_is_not_decompressed() -> None:
    bomb = message(compression="zlib")
    bomb["body"] = base64.b64encode(zlib.compress(b"x" * 1_000_000)).decode()
    bomb["properties"]["body_encoding"] = "base64"
    with pytest.raises(ValueError, match=r".+"):
        reduce_message(bomb)
    assert len(Message(bomb, channel=_Channel()).body) < 2000


@pytest.mark.parametrize("properties", [{}, {"delivery_info": "x"}, {"delivery_tag": ["x"]}, {"delivery_tag": 7}])
def test_every_message_can_be_acknowledged(properties: dict[str, Any]) -> None:
    """Kombu counts unacknowledged messages and receives only a few at a time."""
    tags = [Message(message() | {"properties": dict(properties)}, channel=_Channel()) for _ in range(2)]
    assert [pushed.delivery_info for pushed in tags] == [{}, {}]
    assert len({pushed.delivery_tag for pushed in tags}) == 2


def test_unencodable_body_is_refused() -> None:
    with pytest.raises(ValueError, match="not a call of a task"):
        Message(message() | {"body": "\ud800"}, channel=_Channel())


class _Message:
    """A message that counts its acknowledgements."""

    acks = 0

    def ack(self) -> None:
        self.acks += 1


def test_no_message_calls_a_stage_or_another_task(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(ticks, "on_refused", [lambda: counted.append(1)])
    pushed = _Message()
    ticks.drop_call(pushed, None, None, None, None)
    assert (len(counted), pushed.acks) == (1, 1)


def test_refused_messages_are_not_retained(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = dsf.log.Throttle()
    monkeypatch.setattr(ticks, "_throttle", throttle)
    for number in range(100):
        with pytest.raises(ValueError, match="secret") as caught:
            kombu.utils.json.loads(json.dumps({"__type__": "x", "__value__": f"secret {number}"}))
        ticks.drop_message(caught.value)
    assert set(throttle._last) == {"ValueError"}
