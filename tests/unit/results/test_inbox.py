"""What is left of a message that anybody may have pushed."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.errors import MessageRejectedError
from dsf.messages import INGEST_TASK
from dsf.results.inbox import ITEMS, Letter, message_of

LIMIT = 10_000


def message(parts: object, **headers: object) -> dict[str, Any]:
    return {
        "body": base64.b64encode(json.dumps(parts).encode()).decode(),
        "headers": {"task": INGEST_TASK, "id": "an-id", **headers},
        "properties": {"body_encoding": "base64", "delivery_tag": "mine", "delivery_info": {"routing_key": "spoke.c2"}},
    }


def packed(document: object) -> bytes:
    return json.dumps(document).encode()


def rebuild(item: bytes, limit: int) -> dict[str, Any]:
    return message_of([Letter.open(item, limit)])


def parts_of(rebuilt: dict[str, Any]) -> Any:
    return json.loads(rebuilt["body"])


#: What follows a task.
NOTHING = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def test_a_plain_message_keeps_what_it_says() -> None:
    pushed = message([[{"v": 1}], {}, NOTHING], argsrepr="('c1',)", root_id="root", origin="agent@c1")
    rebuilt = rebuild(packed(pushed), LIMIT)
    assert parts_of(rebuilt) == [['{"v": 1}'], {}, NOTHING]
    assert rebuilt["headers"]["id"] == "an-id"
    assert rebuilt["headers"]["argsrepr"] == "('c1',)"
    assert rebuilt["headers"]["root_id"] == "root"


def test_everything_else_goes() -> None:
    pushed = message(
        [[{"v": 1}, 2], {"x": 1}, {"chain": [{"task": "dsf.fetch"}], "errbacks": ["x"]}],
        eta="2100-01-01",
        expires="2000-01-01",
        group="g",
        timelimit=[1, 1],
        shadow="x",
        argsrepr="y" * 10_000,
        id=["no", "text"],
        stamps={"a": 1},
    )
    rebuilt = rebuild(packed(pushed), LIMIT)
    assert parts_of(rebuilt) == [['{"v": 1}'], {}, NOTHING]
    assert set(rebuilt["headers"]) == {
        *("lang", "task", "id", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "retries", "expires"),
        "ignore_result",
    }
    assert len(rebuilt["headers"]["argsrepr"]) == 200
    assert len(rebuilt["headers"]["id"]) == 36
    assert rebuilt["properties"]["delivery_info"]["routing_key"] == "hub.results"
    assert rebuilt["properties"]["delivery_tag"] != "mine"


def test_a_message_that_comes_again_says_so() -> None:
    pushed = message([[1], {}, {}])
    pushed["properties"]["delivery_info"]["redelivered"] = True
    assert rebuild(packed(pushed), LIMIT)["properties"]["delivery_info"]["redelivered"] is True


def test_several_become_one_message() -> None:
    pushed = [packed(message([[{"n": n}], {}, {}], id=f"id{n}", argsrepr=f"('c1', 's', '{n}')")) for n in range(3)]
    rebuilt = message_of([Letter.open(item, LIMIT) for item in pushed])
    assert parts_of(rebuilt) == [['{"n": 0}', '{"n": 1}', '{"n": 2}'], {}, NOTHING]
    assert rebuilt["headers"]["argsrepr"] == "3 results: ('c1', 's', '0'), ('c1', 's', '1'), ('c1', 's', '2')"
    assert rebuilt["headers"]["id"] not in ("id0", "id1", "id2")
    assert rebuilt["headers"]["root_id"] == rebuilt["headers"]["id"] == rebuilt["properties"]["correlation_id"]
    many = message_of([Letter.open(item, LIMIT) for item in pushed * 20])
    assert len(many["headers"]["argsrepr"]) == 200
    assert many["headers"]["argsrepr"].startswith("60 results: ")


@pytest.mark.parametrize("delivery", [{"routing_key": "x"}, "text", None])
def test_what_it_was_made_of_can_come_again(delivery: object) -> None:
    pushed = message([[{"name": "Zürich"}], {}, {}], argsrepr="('c1', 's', '1')")
    pushed["properties"]["delivery_info"] = delivery
    letter = Letter.open(json.dumps(pushed, ensure_ascii=False).encode(), LIMIT)
    (item,) = message_of([letter])[ITEMS]
    second = Letter.open(item.encode(), LIMIT)
    assert (second.envelope, second.id, second.argsrepr) == (letter.envelope, letter.id, letter.argsrepr)
    assert (letter.redelivered, second.redelivered) == (False, True)


@pytest.mark.parametrize("depth", [900, 950, 970, 980])
def test_what_comes_along_does_not_come_again(depth: int) -> None:
    """So deep that it can just be read here, and not where the stack is a little higher."""
    pushed = message([[{"v": 1}], {}, {}])
    deep = b'{"x": ' + b"[" * depth + b"]" * depth + b", " + packed(pushed)[1:]
    try:
        letter = Letter.open(deep, LIMIT)
    except MessageRejectedError:
        return
    assert json.loads(letter.again()).keys() == {"headers", "properties", "body"}


@pytest.mark.parametrize(
    "item",
    [
        b"",
        b"\xff",
        b"{",
        b"[" * 100_000,
        b"null",
        packed({"headers": {}, "properties": {}, "body": ""}),
        packed(message([[1], {}, {}], task="dsf.fetch")),
        packed(message([[1], {}, {}], task=None)),
        packed(message([])),
        packed(message([[], {}, {}])),
        packed(message({"args": [1]})),
        packed({**message([[1], {}, {}]), "body": "%%%"}),
        packed({**message([[1], {}, {}]), "body": 7}),
        packed(message(["x" * 4 * LIMIT, {}, {}])),
    ],
)
def test_refused(item: bytes) -> None:
    with pytest.raises(MessageRejectedError) as caught:
        rebuild(item, LIMIT)
    assert caught.value.reason == "malformed"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(_JSON, st.dictionaries(st.sampled_from(["id", "eta", "chain", "argsrepr", "root_id"]), _JSON), _JSON)
def test_it_is_a_clean_message_or_refused(parts: object, headers: dict[str, object], properties: object) -> None:
    pushed = message(parts, **headers)
    if isinstance(properties, dict):
        pushed["properties"] |= properties
    try:
        rebuilt = rebuild(packed(pushed), LIMIT)
    except MessageRejectedError:
        return
    arguments, kwargs, embed = parts_of(rebuilt)
    assert [type(argument) for argument in arguments] == [str]
    json.loads(arguments[0])
    assert (kwargs, any(embed.values())) == ({}, False)
    assert rebuilt["headers"]["task"] == INGEST_TASK
