"""Replies of workers, which any holder of an agent's credentials may send."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.control import Panel

from dsf.worker import remotecontrol

_CHANNEL = b"dsf:control:reply:agent@c1"


def _parse_reply(reply: Any, **fields: Any) -> Any:
    data = json.dumps({"ticket": "t", "reply": reply, **fields}).encode()
    return remotecontrol._parse_reply({"channel": _CHANNEL, "data": data}, "t")


def test_texts_of_a_reply_may_be_printed() -> None:
    reply = _parse_reply({"\ud800": ["\x1b]0;title\x07", "a\nb", 1, None, {"x": "\u202e"}]})
    assert reply == {"agent@c1": {"\\ud800": ["\\x1b]0;title\\x07", "a\nb", 1, None, {"x": "\\u202e"}]}}
    assert str(reply).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"reply":1}',
        b'{"ticket":"t"}',
        b'{"ticket":"other","reply":1}',
        b'{"ticket":"t","reply":' + b"[" * 5000,
        b'{"ticket":"t","reply":[' + b"1," * 30_000 + b"1]}",
        b'{"ticket":"t","reply":"' + b"x" * 1024 * 1024 + b'"}',
    ],
)
def test_invalid_reply_is_ignored(data: bytes) -> None:
    assert remotecontrol._parse_reply({"channel": _CHANNEL, "data": data}, "t") is None


@pytest.mark.parametrize(("task", "owner"), [("dsf.cycle", "agents"), ("dsf.ingest", "results workers")])
def test_rate_limit_of_another_workers_task_says_where_it_runs(task: str, owner: str) -> None:
    state = SimpleNamespace(app=SimpleNamespace(tasks={}), consumer=SimpleNamespace(task_buckets={}))
    reply = remotecontrol._set_rate_limit(Panel.data["rate_limit"], state, task, "1/h")
    assert reply == {"ok": f"nothing to limit here, as {task} runs on {owner} only"}
    assert remotecontrol._set_rate_limit(Panel.data["rate_limit"], state, "dsf.typo", "1/h") == {
        "error": "unknown task"
    }


def test_channel_of_a_reply_may_have_any_bytes() -> None:
    message = {"channel": b"dsf:control:reply:\xff\x1b", "data": b'{"ticket":"t","reply":1}'}
    assert remotecontrol._parse_reply(message, "t") == {"\ufffd": 1}
