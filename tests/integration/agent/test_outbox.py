"""Results that the hub does not take: they wait, the newest of a scorer replaces its last, and each says why."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from dsf import keys
from dsf.agent.outbox import KeyRing, Outbox
from dsf.errors import CycleError, MessageRejectedError
from dsf.messages import Outcome, Result, derive_key, new_run_id, verify
from tests.conftest import SettingsFactory

CLUSTER = "worker01"
MASTER = bytes(range(32))


@pytest.fixture
def full(redis_client: redis.Redis) -> redis.Redis:
    """A Redis with every slot of the cluster taken."""
    for slot in keys.mail_slots(CLUSTER):
        redis_client.set(slot, "older")
    return redis_client


@pytest.fixture
def outbox(full: redis.Redis, settings_factory: SettingsFactory, tmp_path: Path) -> Outbox:
    file = tmp_path / "key"
    file.write_text(derive_key(MASTER, CLUSTER, 1).dump())
    settings = settings_factory(role="agent", cluster=CLUSTER, signing_key_file=file)
    return Outbox(full, KeyRing(settings), CLUSTER, 10_000)


def _result(at: float, scorer: str = "sample", outcome: Outcome = "ok") -> Result:
    return Result(cluster=CLUSTER, scorer=scorer, run=new_run_id(at), at=at, outcome=outcome)


def _reason(outbox: Outbox, result: Result, seconds: float) -> str:
    """Why it was not sent; empty when it was."""
    try:
        outbox.send(result, time.monotonic() + seconds)
    except CycleError as error:
        return error.reason if error.stage == "publish" else str(error)
    return ""


def _sent(client: redis.Redis) -> list[str]:
    """Runs in the mailbox."""
    texts = [str(text) for text in client.mget(keys.mail_slots(CLUSTER)) if text not in (None, "older")]
    return [json.loads(json.loads(text)["body"])["run"] for text in texts]


def test_a_hub_that_takes_nothing_is_behind(outbox: Outbox, full: redis.Redis) -> None:
    assert _reason(outbox, _result(1.0), 0.6) == "results_behind"
    assert _sent(full) == []


def test_in_a_full_mailbox_a_newer_result_of_the_scorer_replaces_the_older_one(
    outbox: Outbox, full: redis.Redis
) -> None:
    older, newer, other = _result(1.0), _result(2.0), _result(3.0, "other")
    full.delete(keys.mail_slot(CLUSTER, 7))
    assert _reason(outbox, older, 20) == ""
    assert _reason(outbox, newer, 20) == ""
    assert _reason(outbox, other, 0.6) == "results_behind"
    assert _sent(full) == [newer.run]


def test_a_result_waits_until_there_is_room(outbox: Outbox, full: redis.Redis) -> None:
    result = _result(1.0)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(_reason, outbox, result, 60)
        full.delete(keys.mail_slot(CLUSTER, 3))
        assert sent.result(60) == ""
    assert _sent(full) == [result.run]


def test_bytes_are_counted_and_not_only_characters(outbox: Outbox) -> None:
    # Fewer characters than the hub takes, but each of these has four bytes.
    results = [({"meta": "\N{GRINNING FACE}" * 180}, float(number)) for number in range(42)]
    with pytest.raises(CycleError, match="bytes, more than the 30000 that the hub takes") as caught:
        outbox.send(_result(1.0).model_copy(update={"results": results}), time.monotonic() + 20)
    assert (caught.value.stage, caught.value.reason) == ("publish", "too_large")


@pytest.mark.parametrize("text", ["東", "é", "a", '"'])
def test_results_in_any_script_are_not_much_longer_in_a_slot(outbox: Outbox, full: redis.Redis, text: str) -> None:
    slot = keys.mail_slot(CLUSTER, 3)
    full.delete(slot)
    results = [({"meta": text * 100}, float(number)) for number in range(10)]
    result = _result(1.0).model_copy(update={"results": results})
    assert _reason(outbox, result, 60) == ""
    content = str(full.get(slot))
    least = len(json.loads(content)["body"].encode())
    # A quote is escaped once in the result and once more in the envelope.
    assert len(content.encode()) < least * (2.1 if text == '"' else 1.2)
    assert verify(json.loads(content), MASTER, limit=10_000) == result


def test_half_a_character_is_refused_by_the_hub_and_not_by_the_agent(
    outbox: Outbox, full: redis.Redis, redis_url: str
) -> None:
    slot = keys.mail_slot(CLUSTER, 3)
    full.delete(slot)
    result = _result(1.0)
    result.results.append(({"meta": "\ud800"}, 1.0))
    assert _reason(outbox, result, 60) == ""
    with redis.Redis.from_url(redis_url) as raw:
        content = raw.get(slot)
    with pytest.raises(MessageRejectedError) as refused:
        verify(json.loads(content), MASTER, limit=10_000)
    assert refused.value.reason == "malformed"
