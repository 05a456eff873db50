"""What was pushed into an agent's queue becomes a clean call of a stage, or is refused."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.agent import inbox
from dsf.agent.call import StageCall
from dsf.errors import MessageRejectedError
from dsf.messages import is_run_id
from dsf.ticks import TickFactory
from tests.cases.skew import NAMES, recorded

QUEUE = "spoke.c1"
RUN = "1718600000000-0123abcd"
ARGS = ["sample", RUN]
SIGNATURE = {"task": "dsf.fetch", "args": ["other"], "kwargs": {}, "options": {"queue": "spoke.c2"}}


def message(body: object = None, task: object = "dsf.fetch", **headers: object) -> dict[str, Any]:
    return {
        "body": json.dumps([ARGS, {}, {}] if body is None else body),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": task, "id": "an-id"} | headers,
        "properties": {"delivery_info": {"exchange": "x", "routing_key": "elsewhere"}, "delivery_tag": "mine"},
    }


def accept(document: object) -> StageCall:
    return inbox.accept(json.dumps(document).encode(), QUEUE)


def called(document: object) -> tuple[str, Any]:
    """Task and arguments of what is accepted; nothing comes along."""
    accepted = accept(document)
    args, kwargs, embed = accepted.payload
    assert (kwargs, any(embed.values())) == ({}, False)
    assert accepted.delivery_info == {"exchange": "", "routing_key": QUEUE}
    return accepted.task, list(args)


def test_a_tick() -> None:
    tick = json.loads(TickFactory().message("c1", "sample", RUN, 4102444800.0))
    headers = accept(tick).headers
    assert called(tick) == ("dsf.fetch", ARGS)
    assert headers["expires"] == datetime(2100, 1, 1, tzinfo=UTC)
    assert headers["id"] == tick["headers"]["id"]
    assert headers["argsrepr"] == f"('sample', '{RUN}')"


@pytest.mark.parametrize("name", NAMES)
def test_ticks_of_other_versions(name: str) -> None:
    task, (_, run) = called(recorded(name)["tick"])
    assert (task, is_run_id(run)) == ("dsf.fetch", True)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (["sample"], {}),
        (["sample", None], {}),
        ([], {"scorer": "sample"}),
        (["sample"], {"run_id": None}),
    ],
)
def test_a_fetch_by_hand(args: list[object], kwargs: dict[str, object]) -> None:
    assert called(message([args, kwargs, {}])) == ("dsf.fetch", ["sample"])
    plain = message()
    plain["body"] = base64.b64encode(json.dumps([args, kwargs, {}]).encode()).decode()
    plain["properties"]["body_encoding"] = "base64"
    assert called(plain) == ("dsf.fetch", ["sample"])


@pytest.mark.parametrize("task", ["dsf.score", "dsf.publish"])
def test_a_stage_that_an_older_agent_put_there(task: str) -> None:
    assert called(message(None, task, retries=2)) == (task, ARGS)
    assert accept(message(None, task, retries=2)).headers["retries"] == 2


def test_everything_else_goes() -> None:
    pushed = message(
        [ARGS, {}, {"chain": [SIGNATURE], "callbacks": [SIGNATURE], "errbacks": [SIGNATURE], "chord": SIGNATURE}],
        eta="2100-01-01",
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
    accepted = accept(pushed)
    assert called(pushed) == ("dsf.fetch", ARGS)
    assert not accepted.headers.keys() & {"eta", "group", "shadow", "timelimit", "reply_to", "compression"}
    assert len(accepted.headers["id"]) == 36
    assert accepted.headers["root_id"] == accepted.headers["id"]
    assert accepted.headers["parent_id"] is None
    assert "mine" not in accepted.properties.values()


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
        {**message(), "properties": {"body_encoding": "base64"}},
        message(expires=7),
        message(expires="soon"),
        message(expires={"at": 1}),
        message(retries="2"),
        message(retries=True),
        message(retries=-1),
        message(retries=10**30),
        message(None, None),
        message(None, ["dsf.fetch"]),
        message(None, "dsf.ingest"),
        message(None, "celery.map"),
        message([[], {}, {}]),
        message([["sample", RUN, "more"], {}, {}]),
        message([["sample"], {"scorer": "other"}, {}]),
        message([["sample"], {"url": "http://x"}, {}]),
        message([["Sample"], {}, {}]),
        message([[{"sourceEndpoint": "http://x"}], {}, {}]),
        message([["sample", "../../etc/passwd"], {}, {}]),
        message([["sample", 7], {}, {}]),
        message([["sample"], {}, {}], "dsf.score"),
        message([["sample"], {}, {}], "dsf.publish"),
        message({"args": ARGS}),
        message([ARGS]),
        message([ARGS, {}, "x" * 20_000]),
        {"task": "dsf.fetch", "id": "x", "args": ARGS, "kwargs": {}},
    ],
)
def test_refused(document: object) -> None:
    with pytest.raises(MessageRejectedError):
        accept(document)


@pytest.mark.parametrize("item", [b"", b"\xff", b"{", b"[" * 16_000, b"9" * 10_000, b'"\\ud800"', b"NaN"])
def test_no_json_is_refused(item: bytes) -> None:
    with pytest.raises(MessageRejectedError):
        inbox.accept(item, QUEUE)


@pytest.mark.parametrize("expires", ["0001-01-01T00:00:00+23:59", "0001-01-01", "9999-12-31T23:59:59-23:59"])
def test_it_may_expire_at_the_beginning_or_the_end_of_time(expires: str) -> None:
    called(message(expires=expires))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["sample", RUN]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_HEADERS = ("id", "task", "eta", "expires", "retries", "root_id", "parent_id", "shadow", "group", "argsrepr")


@given(_JSON, st.dictionaries(st.sampled_from(_HEADERS), _JSON), _JSON, st.binary(max_size=50))
def test_it_is_a_clean_call_or_refused(parts: object, headers: dict[str, Any], properties: object, cut: bytes) -> None:
    pushed = message(parts, **headers)
    pushed["properties"] = properties
    for item in (json.dumps(pushed).encode(), json.dumps(pushed).encode()[: len(cut)] + cut, cut):
        try:
            accepted = inbox.accept(item, QUEUE)
        except MessageRejectedError:
            continue
        scorer, *run = accepted.payload[0]
        assert scorer == "sample"
        assert run in ([], [RUN])
