"""Results come by mailboxes: in turns, no more than there is room for, and what is no result goes unread."""

from __future__ import annotations

import itertools
import json
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dsf import keys
from dsf.agent.mailbox import Letter, Mailbox
from dsf.pacer import Pacer
from dsf.results.collector import Collector
from dsf.store.mail import SHORTEST, Mail
from tests.integration.results.bed import Bed
from tests.integration.results.push import message
from tests.integration.results.workerprocess import WorkerProcess
from tests.support.wait import wait_for

ALL = range(keys.MAIL_SLOTS)


@pytest.fixture
def mail(bed: Bed) -> Mail:
    return Mail(bed.client, queue_limit=10, message_limit=1000)


def _put(client: redis.Redis, cluster: str, slot: int, letter: str = "x", length: int = SHORTEST) -> None:
    client.set(keys.mail_slot(cluster, slot), letter * length)


def _queue(client: redis.Redis) -> str:
    """First letters of what is in the results queue, the oldest first."""
    return "".join(str(item)[0] for item in reversed(client.lrange(keys.RESULTS_QUEUE, 0, -1)))


def test_clusters_take_turns_and_the_queue_stays_short(bed: Bed, mail: Mail) -> None:
    for slot in ALL:
        _put(bed.client, "c1", slot, "a")
    _put(bed.client, "c2", 3, "b")
    _put(bed.client, "c3", 7, "c")
    slots = dict.fromkeys(["c1", "c2", "c3"], tuple(ALL))
    done = mail.collect(slots)
    assert _queue(bed.client) == "abcaaaaaaa"
    # The second one is next, after all had a turn; eight slots of the first are empty, and all of the others.
    assert (done.moved, done.next, done.empty, done.refused) == (10, 4, (8, 16, 16), ())
    # No room: nothing is touched.
    assert (mail.collect(slots).moved, bed.client.exists(*keys.mail_slots("c1"))) == (0, 8)
    bed.client.delete(keys.RESULTS_QUEUE)
    assert mail.collect(slots).next is None
    assert _queue(bed.client) == "a" * 8


def test_who_had_a_turn_is_last_the_next_time(bed: Bed) -> None:
    settings = bed.settings.model_copy(update={"results_queue_limit": 1})
    collector = Collector(bed.client, settings, threading.Event())
    order = ""
    for cluster in ("c1", "c2", "c3"):
        for slot in (1, 2):
            _put(bed.client, cluster, slot, cluster[1])
            collector.ring(cluster, str(slot))
    for _ in range(6):
        collector.collect()
        order += _queue(bed.client)
        bed.client.delete(keys.RESULTS_QUEUE)
    assert order == "123123"


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_none_waits_twice_while_others_wait(bed: Bed, limit: int) -> None:
    """A slot that is filled again as soon as it is empty has the same turn as the others, in its cluster and beside."""
    settings = bed.settings.model_copy(update={"results_queue_limit": limit, "results_group": 1})
    collector = Collector(bed.client, settings, threading.Event())
    waiting = {(cluster, slot): 0 for cluster in ("c1", "c2", "c3") for slot in range(4)}
    for cluster, slot in waiting:
        _put(bed.client, cluster, slot)
        collector.ring(cluster, str(slot))
    for _ in range(5 * len(waiting) // limit):
        collector._await_room()
        collector.collect()
        for (cluster, slot), number in waiting.items():
            if not bed.client.exists(keys.mail_slot(cluster, slot)):
                waiting[cluster, slot] = number + 1
                _put(bed.client, cluster, slot)
                collector.ring(cluster, str(slot))
        bed.client.delete(keys.RESULTS_QUEUE)
    assert set(waiting.values()) <= {4, 5, 6}


def test_what_can_be_no_result_goes_unread_and_is_counted(bed: Bed, mail: Mail) -> None:
    for slot in range(8):
        _put(bed.client, "c1", slot, length=20)
    _put(bed.client, "c2", 0, length=3001)
    bed.client.set(keys.mail_slot("c2", 1), "")
    _put(bed.client, "c3", 0, "g")
    done = mail.collect(dict.fromkeys(["c1", "c2", "c3"], tuple(ALL)))
    assert (done.moved, done.next, sorted(done.refused)) == (1, None, ["c1", "c2"])
    assert _queue(bed.client) == "g"
    assert bed.rejected() == {"malformed": 10}
    assert bed.client.hgetall(keys.REJECTED_MAIL) == {"c1": "8", "c2": "2"}
    assert mail.waiting() == []


@pytest.mark.parametrize(
    ("cluster", "slot"),
    [("c1", "16"), ("c1", "-1"), ("c1", "x"), ("C 1", "0"), ("*", "0"), ("c1", "0 1"), ("c1", b"\xff")],
)
def test_after_a_bell_that_no_agent_rings_it_does_not_listen(bed: Bed, cluster: str, slot: str | bytes) -> None:
    collector = Collector(bed.client, bed.settings, threading.Event())
    with bed.client.pubsub(ignore_subscribe_messages=True) as bells:
        bells.psubscribe(keys.mail_bell("*"))
        wait_for(lambda: bed.client.pubsub_numpat() == 1, 10, "the subscription")
        bed.client.publish(keys.mail_bell("c2"), "3")
        bed.client.publish(keys.mail_bell(cluster), slot)
        wait_for(lambda: not collector._hear(bells) and collector._is_deaf, 10, "the bell")
    assert collector._ringing == {"c2": {3: None}}


def test_a_flood_of_bells_delays_no_other_cluster(bed: Bed, redis_url: str) -> None:
    """Each of 15 MB, as large as Redis takes them, and as fast as it does."""
    bed.add("c2")
    stopping, over = threading.Event(), threading.Event()
    collector = Collector(bed.client, bed.settings, stopping)

    def flood() -> None:
        with redis.Redis.from_url(redis_url) as client:
            while not over.is_set():
                client.publish(keys.mail_bell("c1"), b"x" * 15_000_000)

    threads = [threading.Thread(target=collector.run), threading.Thread(target=flood)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: collector._is_deaf, 30, "the end of listening")
        wait_for(lambda: bed.client.pubsub_numpat() == 0, 30, "the end of the subscription")
        for number in range(10):
            # Without a bell, or unheard.
            _put(bed.client, "c2", number % keys.MAIL_SLOTS)
            wait_for(lambda number=number: bed.client.llen(keys.RESULTS_QUEUE) == number + 1, 10, "a result")  # type: ignore[misc]
        assert bed.client.pubsub_numpat() == 0
        # It listens again later.
        over.set()
        threads[1].join()
        collector._deaf_until = 0.0
        wait_for(lambda: bed.client.pubsub_numpat() == 1, 30, "the subscription")
    finally:
        over.set()
        stopping.set()
        for thread in threads:
            thread.join()


def test_too_many_bells_end_listening(bed: Bed) -> None:
    collector = Collector(bed.client, bed.settings, threading.Event())
    number = 0

    class Bells:
        def get_message(self, timeout: float) -> dict[str, str] | None:
            return {"channel": keys.mail_bell("c1"), "data": "0"} if number else None

    for number in (1, 1, 0, 1, 1):
        assert collector._hear(Bells()) is not bool(number)
    assert not collector._is_deaf
    number = 1
    assert not collector._hear(Bells())
    assert collector._is_deaf


def test_who_rings_soon_after_a_collection_is_collected_with_others(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    # So long that two lines of this test are soon after each other on any machine. Nobody waits for it here.
    monkeypatch.setattr("dsf.results.collector.PACE", 0.001)
    monkeypatch.setattr("dsf.results.collector.QUIET_PACE", 300.0)
    monkeypatch.setattr("dsf.results.collector.BURST", 2)
    bells: deque[dict[str, str]] = deque()
    waits: list[float] = []
    ringing: Iterator[tuple[str, str]] = iter(())

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            for cluster, slot in itertools.islice(ringing, 1):
                bells.append({"channel": keys.mail_bell(cluster), "data": slot})
            return False

    class Bells:
        def get_message(self, timeout: float) -> dict[str, str] | None:
            return bells.popleft() if bells else None

    collector = Collector(bed.client, bed.settings, Stopping())
    collector.ring("c1", "0")
    # The first ones after a while do not wait.
    for _ in range(3):
        collector._collected_at = 0.0
        collector._await_others(Bells())
    assert (waits, list(collector._ringing)) == ([], ["c1"])
    # One slot of a mailbox waits for the longer pace; three mean that it fills.
    ringing = iter([("c2", "3")] * 5 + [("c2", "4"), ("c2", "5")])
    collector._await_others(Bells())
    assert collector._ringing == {"c1": {0: None}, "c2": {3: None, 4: None, 5: None}}
    assert all(0 < wait <= 0.001 for wait in waits)
    # So does a task that is two thirds full.
    collector._ringing = {"c0": {0: None}}
    ringing = iter([(f"c{number}", "0") for number in range(1, 2 * bed.settings.results_group // 3)])
    collector._await_others(Bells())
    assert len(collector._ringing) == 2 * bed.settings.results_group // 3
    # While neither is so, the longer pace is kept, and no longer.
    collector._pace = Pacer(0.2, 0)
    collector._ringing = {"c1": {0: None}}
    collector._await_others(Bells())
    before = collector._collected_at
    collector._await_others(Bells())
    assert collector._collected_at >= before + 0.2
    # In a flood not all are heard at once, which says that there is no time to wait.
    bells.extend({"channel": keys.mail_bell("c1"), "data": "0"} for _ in range(1500))
    assert (collector._hear(Bells()), collector._hear(Bells())) == (False, True)


def test_only_one_collects_at_a_time(bed: Bed, mail: Mail) -> None:
    other = Mail(bed.client, queue_limit=10, message_limit=1000)
    assert (mail.is_ours(60), other.is_ours(60), mail.is_ours(60)) == (True, False, True)
    other.give_up()
    assert not other.is_ours(60)
    mail.give_up()
    assert other.is_ours(60)


def test_runs_whose_result_waits_in_the_mailbox_are_not_lost(bed: Bed) -> None:
    bed.add("c2")
    run, other = bed.open("c1"), bed.open("c2")
    _put(bed.client, "c1", 0)
    bed.now += 60 + bed.settings.lost_after + 1
    assert bed.sweep() == [f"c2/s1/{other}"]
    assert bed.sweep() == []
    # But not for ever, should somebody keep putting things there.
    bed.now += 60
    assert bed.sweep() == [f"c1/s1/{run}"]


def _letter(number: int, *, scorer: str = "", message: bytes = b"", is_score: bool = True) -> Letter:
    """A letter; without a name of a scorer each is another one's."""
    run = f"{1_700_000_000_000 + number:013d}-00000000"
    return Letter(scorer or f"scorer-{number}", run, is_score, message or b"%d" % number)


@pytest.fixture
def mailbox(redis_url: str) -> Iterator[Mailbox]:
    with redis.Redis.from_url(redis_url) as client:
        yield Mailbox(client, "c1")


def test_an_agents_mailbox_is_filled_up_and_no_further(bed: Bed, mailbox: Mailbox) -> None:
    with bed.client.pubsub() as bells:
        bells.psubscribe(keys.mail_bell("*"))
        assert (bells.get_message(timeout=30) or {}).get("type") == "psubscribe"
        # One that was left there is gone round.
        bed.client.set(keys.mail_slot("c1", 5), "left")
        assert all(mailbox.put(_letter(n))[0] for n in range(keys.MAIL_SLOTS - 1))
        assert not mailbox.put(_letter(99))[0]
        assert bed.client.exists(*keys.mail_slots("c1")) == keys.MAIL_SLOTS
        assert bed.client.exists(keys.RESULTS_QUEUE) == 0
        bed.client.delete(keys.mail_slot("c1", 9))
        assert mailbox.put(_letter(100, message=b"again"))[0]
        assert bed.client.get(keys.mail_slot("c1", 9)) == "again"
        heard = set()
        while (bell := bells.get_message(timeout=1)) is not None:
            heard.add((bell["channel"], bell["data"]))
        assert heard == {(keys.mail_bell("c1"), str(slot)) for slot in ALL}


def test_what_the_hub_has_not_taken_gives_way_to_what_is_newer(bed: Bed, mailbox: Mailbox) -> None:
    with bed.client.pubsub() as bells:
        bells.psubscribe(keys.mail_bell("*"))
        assert (bells.get_message(timeout=30) or {}).get("type") == "psubscribe"
        first, other, second = _letter(1, scorer="a"), _letter(2, scorer="b"), _letter(3, scorer="a")
        assert mailbox.put(first) == (True, ())
        assert mailbox.put(other) == (True, ())
        assert mailbox.put(second) == (True, (f"a/{first.run}",))
        assert sorted(filter(None, bed.client.mget(keys.mail_slots("c1")))) == ["2", "3"]
        # A reason why there is no score does not take the place of a score.
        assert mailbox.put(_letter(4, scorer="a", is_score=False)) == (True, ())
        assert bed.client.exists(*keys.mail_slots("c1")) == 3
        # Taken by the hub: nothing gave way.
        bed.client.delete(*keys.mail_slots("c1"))
        assert mailbox.put(_letter(5, scorer="b")) == (True, ())


def test_two_threads_never_write_to_one_slot(bed: Bed, mailbox: Mailbox) -> None:
    """One of them for a result of its own that the hub took, the other because the slot's turn has come."""
    slots = keys.mail_slots("c1")
    answers: dict[str, tuple[bool, tuple[str, ...]]] = {}

    def put(scorer: str, number: int) -> None:
        answers[scorer] = mailbox.put(_letter(number, scorer=scorer))

    threads = [threading.Thread(target=put, args=("y", 100)), threading.Thread(target=put, args=("x", 101))]
    with bed.client.pubsub() as bells:
        bells.psubscribe(keys.mail_bell("*"))
        assert (bells.get_message(timeout=30) or {}).get("type") == "psubscribe"
        for number, scorer in enumerate(["x", *(f"s{number}" for number in range(keys.MAIL_SLOTS - 1))]):
            assert mailbox.put(_letter(number, scorer=scorer)) == (True, ())
            bed.client.delete(*slots)
        with mailbox.line.lock:
            for waiting, thread in enumerate(threads, 1):
                thread.start()
                wait_for(lambda waiting=waiting: len(mailbox.line._queue) == waiting, 10, "what is to be sent")  # type: ignore[misc]
        for thread in threads:
            thread.join(30)
    assert answers == {"x": (True, ()), "y": (True, ())}
    assert sorted(filter(None, bed.client.mget(slots))) == ["100", "101"]


def test_runs_whose_results_gave_way_end_with_that_reason(bed: Bed) -> None:
    first = bed.open()
    bed.now += 1
    second = bed.open()
    assert bed.send(second, superseded=[f"s1/{first}"]) == "ok"
    # That is no result which was refused.
    assert bed.rejected() == {}
    # One that reached the hub all the same stays as it is.
    bed.now += 1
    third = bed.open()
    assert bed.send(third, superseded=[f"s1/{second}", f"s1/{first}", "s1/no-run", "none/" + first]) == "ok"
    state = bed.state()
    assert (state.count("ok"), state.skipped(), state.open) == (2, {"superseded": 1}, 0)
    assert [(row.run, row.outcome, row.reason) for row in bed.history()] == [
        (third, "ok", ""),
        (first, "skipped", "superseded"),
        (second, "ok", ""),
    ]


def test_many_runs_that_gave_way_end_together_each_in_its_own_books(bed: Bed) -> None:
    """With the newest of each as its last run, whatever else is wrong."""
    for scorer in ("gone", "broken", "s2"):
        bed.add(scorer=scorer)
    runs: dict[str, list[str]] = {scorer: [] for scorer in ("s1", "gone", "broken", "s2")}
    for _ in range(10):
        bed.now += 0.01
        for scorer, opened in runs.items():
            opened.append(bed.open(scorer=scorer))
    bed.client.hdel(keys.ENTRIES, "c1/gone")
    bed.client.set(keys.history_key("c1", "broken"), "a text")
    bed.client.script_flush()
    given_way = [f"{scorer}/{run}" for scorer, opened in runs.items() for run in opened[:9]]
    assert bed.send(runs["s1"][9], superseded=given_way) == "ok"
    assert bed.send(runs["s2"][9], scorer="s2", superseded=given_way, outcome="error") == "error"
    for scorer in ("s1", "s2"):
        state = bed.state(scorer=scorer)
        assert (state.skipped(), state.open) == ({"superseded": 9}, 0)
        assert bed.client.hget(keys.pair_key("c1", scorer), "last_run") == runs[scorer][9]
        assert {row.reason for row in bed.history(scorer=scorer)} >= {"superseded"}
        assert bed.client.llen(keys.history_key("c1", scorer)) == 5
    # Those are declared lost: nothing is half done.
    assert bed.state(scorer="broken").skipped() == {}
    members = bed.client.zrange(keys.OPEN_RUNS, 0, -1)
    assert members == [f"c1/{one}" for one in [*(f"broken/{run}" for run in runs["broken"]), f"gone/{runs['gone'][9]}"]]


def test_a_worker_takes_in_what_is_mailed_and_what_it_did_not_hear_of(bed: Bed, redis_url: str, tmp_path: Path) -> None:
    envelopes = bed.backlog(40)
    with redis.Redis.from_url(redis_url) as client, WorkerProcess(redis_url, tmp_path) as worker:
        box = Mailbox(client, "c1")
        # No bell: it was not there when this was put in.
        for slot, envelope in enumerate(envelopes[:10]):
            client.set(keys.mail_slot("c1", slot), json.dumps(message([envelope])))
        wait_for(lambda: bed.state().count("ok") == 10, 60, "the first ones")
        for number, envelope in enumerate(envelopes[10:]):
            letter = _letter(number, message=json.dumps(message([envelope])).encode())
            wait_for(lambda letter=letter: box.put(letter)[0], 60, "room in the mailbox")  # type: ignore[misc]
        wait_for(lambda: bed.state().count("ok") == 40, 60, "all of them")
        assert bed.client.exists(keys.RESULTS_QUEUE, *keys.mail_slots("c1")) == 0
        assert worker.stop() == 0
    # The next one need not wait for the lease to end.
    assert bed.client.exists(keys.COLLECTOR) == 0
