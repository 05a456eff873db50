"""Results that wait for the hub: the newest of a scorer replaces its last, and each failure has a reason."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from dsf import keys
from dsf.agent.outbox import Mail, Mailbox, Outbox, SigningKeyFile
from dsf.errors import CycleError, MessageRejectedError
from dsf.messages import Result, derive_key, make_run_id, verify
from tests.support.fixtures import SettingsFactory

CLUSTER = "worker01"
MASTER = bytes(range(32))
SLOTS = keys.mail_slots(CLUSTER)


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """Return a client that does not decode responses."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def full(redis_client: redis.Redis) -> redis.Redis:
    """Return a Redis in which every slot of the cluster is full."""
    redis_client.mset(dict.fromkeys(SLOTS, "older"))
    return redis_client


@pytest.fixture
def mailbox(raw: redis.Redis) -> Mailbox:
    return Mailbox(raw, CLUSTER, dict)


@pytest.fixture
def outbox(full: redis.Redis, settings_factory: SettingsFactory, tmp_path: Path) -> Outbox:
    file = tmp_path / "key"
    file.write_text(derive_key(MASTER, CLUSTER, 1).dump())
    settings = settings_factory(role="agent", cluster=CLUSTER, signing_key_file=file)
    return Outbox(full, SigningKeyFile(settings), CLUSTER, 10_000, namespaces=dict)


def entry(number: int, *, scorer: str = "", has_scores: bool = True) -> Mail:
    """Return mail for a slot; each has another scorer unless `scorer` is set."""
    run = f"{1_700_000_000_000 + number:013d}-00000000"
    return Mail(scorer or f"scorer-{number}", run, has_scores)


def _result(*results: tuple[dict[str, str], float]) -> Result:
    result = Result(cluster=CLUSTER, scorer="sample", run=make_run_id(1.0), at=1.0, outcome="ok")
    # Bypasses the agent's checks, so that the hub gets what it must refuse.
    result.results.extend(results)
    return result


# --- the mailbox -----------------------------------------------------------------------------------------------------


def test_mailbox_fills_up_to_its_limit(redis_client: redis.Redis, mailbox: Mailbox) -> None:
    # A slot that is already full is skipped.
    redis_client.set(SLOTS[5], "left")
    assert all(mailbox.put(entry(n), b"%d" % n) for n in range(keys.MAIL_SLOTS - 1))
    assert redis_client.get(keys.mail_flag(CLUSTER)) == "15"
    assert not mailbox.put(entry(99), b"99")
    redis_client.delete(SLOTS[9])
    assert mailbox.put(entry(100), b"again")
    assert redis_client.get(SLOTS[9]) == "again"


@pytest.mark.parametrize(
    ("first", "second", "is_taken"),
    [
        (entry(2, scorer="sample"), entry(3, scorer="sample"), True),
        (entry(2, scorer="sample", has_scores=False), entry(3, scorer="sample"), True),
        # An older result, a reason without score and another scorer's result do not replace it.
        (entry(2, scorer="sample"), entry(1, scorer="sample"), False),
        (entry(2, scorer="sample"), entry(3, scorer="sample", has_scores=False), False),
        (entry(2, scorer="sample"), entry(3, scorer="other"), False),
    ],
)
def test_when_it_is_full_a_newer_score_replaces_the_last_result_of_its_scorer(
    full: redis.Redis, mailbox: Mailbox, first: Mail, second: Mail, is_taken: bool
) -> None:
    full.delete(SLOTS[3])
    assert mailbox.put(first, b"first")
    assert mailbox.put(second, b"second") is is_taken
    assert full.get(SLOTS[3]) == ("second" if is_taken else "first")
    assert full.mget(SLOTS).count("older") == keys.MAIL_SLOTS - 1


def test_scorer_over_its_share_replaces_its_oldest_score(redis_client: redis.Redis, mailbox: Mailbox) -> None:
    other_mails = [entry(number) for number in range(1, 4)]
    assert all(mailbox.put(mail, mail.scorer.encode()) for mail in other_mails)
    share = keys.MAIL_SLOTS // 4
    runs = range(10, 10 + share)
    assert all(mailbox.put(entry(number, scorer="a"), b"a%d" % number) for number in runs)
    assert mailbox.put(entry(50, scorer="a"), b"a50")
    # A reason without score replaces no entry.
    assert mailbox.put(entry(51, scorer="a", has_scores=False), b"a51")
    texts = [text for text in redis_client.mget(SLOTS) if text]
    assert sorted(texts) == sorted([*(mail.scorer for mail in other_mails), *(f"a{n}" for n in runs[1:]), "a50", "a51"])


def test_first_attempt_replaces_no_entry(redis_client: redis.Redis, mailbox: Mailbox) -> None:
    """A suspended agent may have two scores of a scorer at once; the hub ingests both."""
    other_mails = [entry(number) for number in range(keys.MAIL_SLOTS // 2)]
    assert all(mailbox.put(mail, mail.scorer.encode(), replace=False) for mail in other_mails)
    assert mailbox.put(entry(50, scorer="a"), b"a50", replace=False)
    assert not mailbox.put(entry(51, scorer="a"), b"a51", replace=False)
    texts = {str(redis_client.getdel(slot)) for slot in SLOTS if redis_client.exists(slot)}
    assert texts == {*(mail.scorer for mail in other_mails), "a50"}


def test_score_replaces_no_reason_while_a_slot_is_free(redis_client: redis.Redis, mailbox: Mailbox) -> None:
    """Many scorers share the slots; each has an expired tick, and a cycle after it."""
    scorers = [f"scorer-{number}" for number in range(keys.MAIL_SLOTS - 2)]
    reasons = [entry(1, scorer=scorer, has_scores=False) for scorer in scorers]
    assert all(mailbox.put(mail, f"{mail.scorer} late".encode()) for mail in reasons)
    scores = [entry(2, scorer=scorer) for scorer in scorers[:3]]
    assert all(mailbox.put(mail, f"{mail.scorer} score".encode()) for mail in scores)
    texts = [text for text in redis_client.mget(SLOTS) if text]
    # Two scores used free slots; the third replaced the reason of its scorer.
    late = [f"{scorer} late" for scorer in scorers if scorer != "scorer-2"]
    assert sorted(texts) == sorted([*late, *(f"{mail.scorer} score" for mail in scores)])


def test_slot_emptied_and_refilled_meanwhile_is_not_replaced(
    redis_client: redis.Redis, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_client.mset(dict.fromkeys(SLOTS[1:], "older"))
    assert mailbox.put(entry(1, scorer="a"), b"a1")
    older = mailbox._find_slots_with_older_results

    def before_the_hub_and_another_thread(mail: Mail) -> list[int]:
        slots = older(mail)
        monkeypatch.setattr(mailbox, "_find_slots_with_older_results", older)
        redis_client.delete(SLOTS[0])
        assert mailbox.put(entry(2, scorer="b"), b"b2")
        return slots

    monkeypatch.setattr(mailbox, "_find_slots_with_older_results", before_the_hub_and_another_thread)
    assert not mailbox.put(entry(3, scorer="a"), b"a3")
    assert redis_client.get(SLOTS[0]) == "b2"


def test_threads_never_write_to_one_slot_at_once(redis_client: redis.Redis, mailbox: Mailbox) -> None:
    """The reader gets each stored entry once while it empties slots as fast as they are filled."""
    writers_ended = threading.Event()
    emptied_texts: list[str] = []

    def empty() -> None:
        while not writers_ended.is_set() or redis_client.exists(*SLOTS):
            emptied_texts.extend(str(text) for slot in SLOTS if (text := redis_client.getdel(slot)))

    hub = threading.Thread(target=empty)
    hub.start()
    with ThreadPoolExecutor(4) as pool:
        stored_flags = list(pool.map(lambda number: mailbox.put(entry(number), b"%d" % number), range(200)))
    writers_ended.set()
    hub.join(60)
    assert sorted(emptied_texts) == sorted(str(number) for number, is_in in enumerate(stored_flags) if is_in)
    assert stored_flags.count(True) >= keys.MAIL_SLOTS


def test_slot_forgotten_by_another_thread_is_skipped(
    redis_client: redis.Redis, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_client.mset(dict.fromkeys(SLOTS[1:], "older"))
    assert mailbox.put(entry(1, scorer="a"), b"a1")
    find_older_slots = mailbox._find_slots_with_older_results

    def find_and_forget(mail: Mail) -> list[int]:
        slots = find_older_slots(mail)
        redis_client.delete(SLOTS[0])
        # Another thread looks for free slots and forgets the result that the hub has read.
        mailbox._find_occupied_slots()
        return slots

    monkeypatch.setattr(mailbox, "_find_slots_with_older_results", find_and_forget)
    assert not mailbox.put(entry(2, scorer="a"), b"a2")
    assert redis_client.get(SLOTS[0]) is None


def test_records_of_slots_change_only_under_the_lock(mailbox: Mailbox) -> None:
    """Another thread may iterate the records at any time."""
    lock = mailbox._lock

    class GuardedRecords(dict[int, Any]):
        def __setitem__(self, slot: int, record: Any) -> None:
            assert lock.locked()
            super().__setitem__(slot, record)

        def __delitem__(self, slot: int) -> None:
            assert lock.locked()
            super().__delitem__(slot)

    mailbox._mail_by_slot = GuardedRecords()
    mailbox._scorer_by_busy_slot = GuardedRecords()
    assert mailbox.put(entry(1), b"1")
    assert list(mailbox._mail_by_slot) == [0]
    assert not mailbox._scorer_by_busy_slot


def make_namespaces(**namespaces: int) -> dict[str, str]:
    """Return the namespace of each scorer: so many of each, `a0`, `a1` ... of `a`; `hub` is the hub's own."""
    return {
        f"{name}{number}": "" if name == "hub" else name
        for name, scorers in namespaces.items()
        for number in range(scorers)
    }


def fill(mailbox: Mailbox, namespace: str, scorers: int) -> int:
    """Put a result of each scorer of a namespace; return how many are in."""
    return sum(mailbox.put(entry(n, scorer=f"{namespace}{n}"), f"{namespace}{n}".encode()) for n in range(scorers))


def test_greedy_namespace_leaves_slots_for_others(redis_client: redis.Redis, raw: redis.Redis) -> None:
    mailbox = Mailbox(raw, CLUSTER, lambda: make_namespaces(hub=20, a=40, b=40))
    assert fill(mailbox, "a", 40) == 6
    assert fill(mailbox, "b", 40) == 3
    assert fill(mailbox, "hub", 20) == 7
    assert all(redis_client.mget(SLOTS))
    # A scorer replaces its own result although its namespace has its share.
    newer = entry(99, scorer="a0")
    assert mailbox.put(newer, b"a0 newer")
    assert "a0 newer" in redis_client.mget(SLOTS)


def test_namespace_uses_the_slots_that_the_hub_has_emptied(redis_client: redis.Redis, raw: redis.Redis) -> None:
    mailbox = Mailbox(raw, CLUSTER, lambda: make_namespaces(hub=1, a=40))
    for _ in range(5):
        assert fill(mailbox, "a", 40) == 6
        redis_client.delete(*SLOTS)
    assert fill(mailbox, "hub", 1) == 1


def test_namespace_that_is_alone_has_all_slots(raw: redis.Redis) -> None:
    mailbox = Mailbox(raw, CLUSTER, lambda: make_namespaces(a=40))
    assert fill(mailbox, "a", 40) == keys.MAIL_SLOTS


# --- sending ---------------------------------------------------------------------------------------------------------


def test_full_mailbox_is_reported_as_results_behind(outbox: Outbox, full: redis.Redis) -> None:
    with pytest.raises(CycleError) as caught:
        outbox.send(_result(), time.monotonic() + 0.6)
    assert (caught.value.stage, caught.value.reason) == ("publish", "results_behind")
    assert set(full.mget(SLOTS)) == {"older"}


@pytest.mark.parametrize(
    ("seconds", "is_ending", "tries"), [(60.0, False, [False, True]), (0.1, False, [True]), (60.0, True, [True])]
)
def test_score_replaces_the_previous_one_after_the_hub_had_time(
    outbox: Outbox,
    full: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    is_ending: bool,
    tries: list[bool],
) -> None:
    """The last attempt may replace the score immediately."""
    full.delete(SLOTS[3])
    first, second = _result(), _result()
    second.run = make_run_id(2.0)
    outbox.send(first, time.monotonic() + 60)
    put, may_replace = outbox._mailbox.put, []

    def noted(mail: Mail, text: bytes, *, replace: bool) -> bool:
        may_replace.append(replace)
        return put(mail, text, replace=replace)

    monkeypatch.setattr(outbox._mailbox, "put", noted)
    if is_ending:
        outbox._stopping.set()
    outbox.send(second, time.monotonic() + seconds)
    assert may_replace == tries
    assert second.run in str(full.get(SLOTS[3]))


def test_result_waits_for_a_free_slot(outbox: Outbox, full: redis.Redis) -> None:
    result = _result()
    with ThreadPoolExecutor(1) as pool:
        pending_send = pool.submit(outbox.send, result, time.monotonic() + 60)
        full.delete(SLOTS[3])
        pending_send.result(60)
    assert result.run in str(full.get(SLOTS[3]))


def test_size_of_a_result_is_limited_in_bytes(outbox: Outbox) -> None:
    results = [({"meta": "\N{GRINNING FACE}" * 180}, float(number)) for number in range(42)]
    with pytest.raises(CycleError, match="bytes, more than the 10000 that the hub takes") as caught:
        outbox.send(_result(*results), time.monotonic() + 20)
    assert (caught.value.stage, caught.value.reason) == ("publish", "too_large")


@pytest.mark.parametrize("text", ["東", "é", "a", '"'])
def test_results_in_any_script_are_not_much_longer_in_a_slot(outbox: Outbox, full: redis.Redis, text: str) -> None:
    full.delete(SLOTS[3])
    result = _result(*(({"meta": text * 100}, float(number)) for number in range(10)))
    outbox.send(result, time.monotonic() + 60)
    content = str(full.get(SLOTS[3]))
    # The frame contains the payload unchanged except for quotes.
    assert len(content.encode()) < 1000 + 1000 * len(json.dumps(text, ensure_ascii=False).encode())
    assert verify(content.encode(), MASTER).result == result


def test_half_a_character_is_refused_by_the_hub_and_not_by_the_agent(
    outbox: Outbox, full: redis.Redis, raw: redis.Redis
) -> None:
    full.delete(SLOTS[3])
    outbox.send(_result(({"meta": "\ud800"}, 1.0)), time.monotonic() + 60)
    with pytest.raises(MessageRejectedError) as raised:
        verify(raw.get(SLOTS[3]), MASTER)
    assert raised.value.reason == "malformed"
