"""What a result may say: its reason becomes the name of a counter and of a metric's label."""

from __future__ import annotations

import json

import pytest

from dsf.errors import MessageRejectedError, SchemaMismatchError
from dsf.messages import Result, _signature, derive_key, latest_run_id, new_run_id, sign, verify

MASTER = bytes(range(32))
RUN = "1799999999000-0123abcd"


def _sent(reason: str) -> Result:
    result = Result.model_construct(cluster="c", scorer="s", run=RUN, at=1.0, outcome="error", reason=reason)
    envelope = sign(result, derive_key(MASTER, "c", 1))
    assert json.loads(envelope["body"])["reason"] == reason
    return verify(envelope, MASTER)


def test_a_reason_is_one_word() -> None:
    assert _sent("http_error").reason == "http_error"


@pytest.mark.parametrize("reason", ["abc\n", "\nabc", "abc\n\n", "a b", "Abc", "a:b", "é"])
def test_what_is_no_reason(reason: str) -> None:
    with pytest.raises(MessageRejectedError, match="reason: Value error, not a snake_case word"):
        _sent(reason)


def test_a_key_id_that_is_no_number_spoils_no_key() -> None:
    """Derived keys are remembered, and `true` equals 1: one cluster could have kept out another one's results."""
    result = Result(cluster="c", scorer="s", run=RUN, at=1.0, outcome="ok")
    good = sign(result, derive_key(MASTER, "c", 1))
    derive_key.cache_clear()
    with pytest.raises(MessageRejectedError, match="key id"):
        verify({**good, "kid": True}, MASTER)
    assert verify(good, MASTER) == result


def test_what_cannot_be_seen_does_not_arrive() -> None:
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
    found = verify(sign(result, derive_key(MASTER, "c", 1)), MASTER)
    assert (found.message, found.agent, found.version) == ("a 31m b ]0;", "host", "1")
    assert found.results == [({"node": "n 1 ", "pod": "p"}, 1.0)]


def test_a_cluster_signs_for_itself_only() -> None:
    result = Result(cluster="other", scorer="s", run=RUN, at=1.0, outcome="ok")
    envelope = sign(result, derive_key(MASTER, "c", 1)) | {"cluster": "c"}
    with pytest.raises(MessageRejectedError, match="signed by c for cluster other") as refused:
        verify(envelope, MASTER)
    assert refused.value.reason == "bad_signature"


@pytest.mark.parametrize(("version", "said"), [("2.0", "2.0"), (2, ""), ({"major": 2}, "")])
def test_a_result_of_a_later_schema_is_named_as_such(version: object, said: str) -> None:
    key = derive_key(MASTER, "c", 1)
    body = json.dumps({"v": 99, "version": version})
    with pytest.raises(SchemaMismatchError) as refused:
        verify({"v": 1, "kid": 1, "cluster": "c", "body": body, "sig": _signature(key, body)}, MASTER)
    assert (refused.value.schema_version, refused.value.version) == (99, said)


def test_run_ids_of_a_moment_sort_before_what_is_later() -> None:
    runs = [new_run_id(at) for at in (1.0, 1.0, 1.5)]
    assert [run <= latest_run_id(1.0) for run in runs] == [True, True, False]
