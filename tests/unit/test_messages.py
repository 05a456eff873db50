"""Validation of results; a reason becomes the name of a counter and a metric label."""

from __future__ import annotations

import json

import pytest

from dsf import messages
from dsf.errors import MessageRejectedError, SchemaMismatchError
from dsf.messages import (
    FRAME_MARK,
    MAX_HEADER_BYTES,
    Result,
    derive_key,
    make_frame,
    make_latest_run_id,
    make_run_id,
    parse_claimed_cluster,
    sign,
    verify,
)

MASTER = bytes(range(32))
RUN = "1799999999000-0123abcd"


def _make_signed_result(reason: str) -> Result:
    result = Result.model_construct(cluster="c", scorer="s", run=RUN, at=1.0, outcome="error", reason=reason)
    signed_frame = sign(result, derive_key(MASTER, "c", 1))
    assert json.loads(signed_frame.partition(b"\n")[2])["reason"] == reason
    return verify(signed_frame, MASTER).result


def test_reason_is_one_word() -> None:
    assert _make_signed_result("http_error").reason == "http_error"


@pytest.mark.parametrize("reason", ["abc\n", "\nabc", "abc\n\n", "a b", "Abc", "a:b", "é"])
def test_invalid_reason_is_refused(reason: str) -> None:
    with pytest.raises(MessageRejectedError, match="reason: Value error, not a snake_case word"):
        _make_signed_result(reason)


def test_sender_is_verified_before_anything_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    good = sign(Result(cluster="c", scorer="s", run=RUN, at=1.0, outcome="ok"), derive_key(MASTER, "c", 1))
    monkeypatch.setattr(messages, "check", pytest.fail)
    monkeypatch.setattr(messages._Payload, "model_validate_json", pytest.fail)
    with pytest.raises(MessageRejectedError) as raised:
        verify(good + b"[", MASTER)
    assert raised.value.reason == "bad_signature"


def test_frame_names_sender_and_schema_once() -> None:
    result = Result(cluster="c.1", scorer="s", run=RUN, at=1.0, outcome="ok")
    signed_frame = sign(result, derive_key(MASTER, "c.1", 7))
    assert (parse_claimed_cluster(signed_frame), parse_claimed_cluster(b"no frame")) == ("c.1", "")
    assert b"c.1" not in signed_frame.partition(b"\n")[2]
    assert verify(signed_frame, MASTER) == (7, result)
    assert len(signed_frame.partition(b"\n")[0]) <= MAX_HEADER_BYTES
    assert signed_frame[:FRAME_MARK] != sign(result, derive_key(MASTER, "c.1", 8))[:FRAME_MARK]


def test_invisible_characters_are_removed() -> None:
    result = Result.model_construct(
        cluster="c",
        scorer="s",
        run=RUN,
        at=1.0,
        outcome="partial",
        message="a\x9b31m\u202eb\x1b]0;",
        agent="host\x07",
        version="1\u200b",
        results=[({"node": "n\x9b1\n", "pod": "p"}, 1.0)],
    )
    received = verify(sign(result, derive_key(MASTER, "c", 1)), MASTER).result
    assert (received.message, received.agent, received.version) == ("a 31m b ]0;", "host", "1")
    assert received.results == [({"node": "n 1 ", "pod": "p"}, 1.0)]


def test_cluster_signs_for_itself_only() -> None:
    result = Result(cluster="other", scorer="s", run=RUN, at=1.0, outcome="ok")
    signed_frame = sign(result, derive_key(MASTER, "c", 1))
    with pytest.raises(MessageRejectedError, match="does not match the key 1 of cluster other") as raised:
        verify(signed_frame, MASTER)
    assert raised.value.reason == "bad_signature"


@pytest.mark.parametrize(("version", "version_text"), [("2.0", "2.0"), (2, ""), ({"major": 2}, "")])
def test_result_of_a_later_schema_is_named_as_such(version: object, version_text: str) -> None:
    key = derive_key(MASTER, "c", 1)
    signed_frame = make_frame(json.dumps({"version": version}).encode(), key, "c", 99)
    with pytest.raises(SchemaMismatchError) as raised:
        verify(signed_frame, MASTER)
    assert (raised.value.schema_version, raised.value.version) == (99, version_text)


def test_run_ids_of_a_moment_sort_before_what_is_later() -> None:
    runs = [make_run_id(at) for at in (1.0, 1.0, 1.5)]
    assert [run <= make_latest_run_id(1.0) for run in runs] == [True, True, False]
