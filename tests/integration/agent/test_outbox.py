"""Results that the hub does not take: the newest of a scorer waits, an older one gives way, and each says why."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis

from dsf import keys
from dsf.agent.outbox import Outbox
from dsf.agent.secrets import KeyRing
from dsf.errors import CycleError
from dsf.messages import Outcome, Result, new_run_id
from tests.conftest import SettingsFactory
from tests.support.wait import wait_for

CLUSTER = "worker01"


@pytest.fixture
def full(redis_client: redis.Redis) -> Iterator[redis.Redis]:
    """A Redis with a hub that listens, and every slot of the cluster taken."""
    with contextlib.closing(redis_client.pubsub()) as hub:
        hub.psubscribe(keys.mail_bell("*"))
        for slot in keys.mail_slots(CLUSTER):
            redis_client.set(slot, "older")
        yield redis_client


@pytest.fixture
def outbox(full: redis.Redis, settings_factory: SettingsFactory) -> Iterator[Outbox]:
    settings = settings_factory(role="agent", cluster=CLUSTER, signing_key="1:" + "5e" * 32)
    made = Outbox(full, KeyRing(settings), CLUSTER, 10_000)
    yield made
    made.close()


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
    return [json.loads(json.loads(json.loads(text)["body"])[0][0]["body"])["run"] for text in texts]


def test_a_hub_that_takes_nothing_is_behind(outbox: Outbox, full: redis.Redis) -> None:
    assert _reason(outbox, _result(1.0), 0.6) == "results_behind"
    assert _sent(full) == []
    assert full.llen(keys.RESULTS_QUEUE) == 0, "a hub with mailboxes listens"


def _waiting(pool: ThreadPoolExecutor, outbox: Outbox, *results: Result) -> list[Future[str]]:
    """Send them in this order, each when those before it wait."""
    futures: list[Future[str]] = []
    for result in results:
        futures.append(pool.submit(_reason, outbox, result, 20))
        wait_for(lambda: any(one.run == result.run for one in outbox._waiting), 10, "it to wait")  # noqa: B023
    return futures


def test_a_newer_result_of_the_scorer_takes_the_place_of_an_older_one(outbox: Outbox, full: redis.Redis) -> None:
    other, older, newer = _result(1.0, "other"), _result(1.0), _result(2.0)
    with ThreadPoolExecutor(3) as pool:
        alone, first, second = _waiting(pool, outbox, other, older, newer)
        assert first.result(10) == "superseded"
        for slot in keys.mail_slots(CLUSTER)[:4]:
            full.delete(slot)
        assert (alone.result(10), second.result(10)) == ("", "")
    assert sorted(_sent(full)) == sorted([other.run, newer.run])


def test_a_score_does_not_give_way_to_a_newer_reason_why_there_is_none(outbox: Outbox, full: redis.Redis) -> None:
    score, reason = _result(1.0), _result(2.0, outcome="error")
    with ThreadPoolExecutor(2) as pool:
        futures = _waiting(pool, outbox, score, reason)
        # Both have looked once more.
        time.sleep(0.6)
        for slot in keys.mail_slots(CLUSTER)[:4]:
            full.delete(slot)
        assert [one.result(10) for one in futures] == ["", ""]
    found: list[Any] = sorted(_sent(full))
    assert found == sorted([score.run, reason.run])
