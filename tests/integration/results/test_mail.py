"""Results wait in mailboxes: read in turns, and left there until they are in the books."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import redis

from dsf import keys
from dsf.results import intake as hubs_mail
from dsf.results.intake import MIN_RESULT_BYTES, MailboxContents, Mailboxes, find_cluster
from dsf.store.agents import count_waiting_results
from tests.integration.results.bed import ResultsHarness
from tests.integration.results.push import put, waiting
from tests.support.wait import wait_for

ALL = range(keys.MAIL_SLOTS)


@pytest.fixture
def raw(redis_url: str) -> Iterator[redis.Redis]:
    """A client that does not decode answers."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def mail(bed: ResultsHarness, raw: redis.Redis) -> Mailboxes:
    for cluster in ("c2", "c3"):
        bed.add(cluster)
    return Mailboxes(raw, 3000)


def fill(
    bed: ResultsHarness, cluster: str, slots: range | tuple[int, ...], letter: str = "x", length: int = MIN_RESULT_BYTES
) -> None:
    for slot in slots:
        put(bed.client, slot, letter * length, cluster)


def letters(read: MailboxContents) -> str:
    """Return the first letters of the results that were read."""
    return "".join(text.decode()[0] for text in read.texts)


def clusters(read: MailboxContents) -> Counter[str]:
    return Counter(map(find_cluster, read.slots))


def finish(mail: Mailboxes, read: MailboxContents) -> None:
    mail.empty(read.slots, read.texts)


def test_clusters_are_read_in_turns(bed: ResultsHarness, mail: Mailboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs_mail, "_MAX_RESULTS", 6)
    fill(bed, "c1", ALL, "a")
    fill(bed, "c2", (3,), "b")
    fill(bed, "c3", (7, 8), "c")
    first = mail.read()
    assert (Counter(letters(first)), first.has_more) == ({"a": 3, "b": 1, "c": 2}, True)
    # Results stay in their slots until the books contain them.
    assert waiting(bed.client) == 16
    assert waiting(bed.client, "c2") == 1
    finish(mail, first)
    assert (waiting(bed.client), waiting(bed.client, "c2"), waiting(bed.client, "c3")) == (13, 0, 0)
    numbers = []
    while (read := mail.read()).slots:
        numbers.append(len(read.slots))
        finish(mail, read)
    assert numbers == [6, 6, 1]


def test_clusters_are_never_skipped(bed: ResultsHarness, mail: Mailboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few results are read at once, and even if each slot is filled again as soon as it is empty."""
    monkeypatch.setattr(hubs_mail, "_MAX_RESULTS", 2)
    for number in range(4, 8):
        bed.add(f"c{number}")
    names = [f"c{number}" for number in range(1, 8)]
    for cluster in names:
        fill(bed, cluster, (1, 2))
    served: Counter[str] = Counter()
    for _ in range(21):
        read = mail.read()
        finish(mail, read)
        served += clusters(read)
        for slot in read.slots:
            fill(bed, find_cluster(slot), (int(slot.rpartition(b".")[2]),))
    assert sum(served.values()) in range(36, 43)
    assert set(served) == set(names)
    assert max(served.values()) - min(served.values()) <= 4


def test_slots_are_read_in_turns(
    bed: ResultsHarness, mail: Mailboxes, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refilled slot waits until all other slots were read, also by another worker."""
    monkeypatch.setattr(hubs_mail, "_MAX_RESULTS", 1)
    readers = [mail, Mailboxes(raw, 3000)]
    served = []
    for number in range(7):
        fill(bed, "c1", (1, 4, 9))
        read = readers[number % 2].read()
        finish(readers[number % 2], read)
        served += [int(slot.rpartition(b".")[2]) for slot in read.slots]
    assert served == [1, 4, 9, 1, 4, 9, 1]


def test_results_read_at_once_are_bounded_in_bytes(
    bed: ResultsHarness, mail: Mailboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs_mail, "_MAX_BYTES", 5000)
    fill(bed, "c1", (0, 1, 2, 3), length=3000)
    assert [len(mail.read().slots) for _ in range(2)] == [2, 2]


def test_large_results_of_some_clusters_delay_no_others(
    bed: ResultsHarness, mail: Mailboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if each is there again as soon as it was read."""
    monkeypatch.setattr(hubs_mail, "_MAX_BYTES", 5000)
    names = [f"c{number}" for number in range(1, 8)]
    served: Counter[str] = Counter()
    for name in names[3:]:
        bed.add(name)
    for _ in range(8):
        for name in names:
            fill(bed, name, (1,), length=3000)
        read = mail.read()
        finish(mail, read)
        served += clusters(read)
    assert set(served) == set(names)


def test_malformed_mail_is_counted_unread(bed: ResultsHarness, mail: Mailboxes) -> None:
    fill(bed, "c1", range(8), length=20)
    fill(bed, "c2", (0,), length=3001)
    put(bed.client, 1, "", "c2")
    fill(bed, "c3", (0,), "g")
    read = mail.read()
    assert (letters(read), read.has_more) == ("g", False)
    assert bed.rejected() == {"malformed": 10}
    assert bed.client.hgetall(keys.REJECTED_MAIL) == {"c1": "8", "c2": "2"}
    assert count_waiting_results(bed.client, ["c1", "c2"]) == 0


def test_mailbox_without_a_flag_is_read_by_a_full_scan(bed: ResultsHarness, mail: Mailboxes) -> None:
    fill(bed, "c1", (4,))
    bed.client.delete(keys.mail_flag("c1"))
    assert mail.read().slots == []
    read = mail.read(everywhere=True)
    assert read.slots == [keys.mail_slot("c1", 4).encode()]
    finish(mail, read)
    assert count_waiting_results(bed.client, ["c1", "c2", "c3"]) == 0


def test_mailbox_of_an_unknown_cluster_stays_unread(bed: ResultsHarness, mail: Mailboxes) -> None:
    fill(bed, "c9", (0,))
    assert mail.read(everywhere=True).slots == []


def test_newer_result_in_a_slot_is_kept(bed: ResultsHarness, mail: Mailboxes) -> None:
    fill(bed, "c1", (0, 1), "a")
    read = mail.read()
    fill(bed, "c1", (1,), "b")
    finish(mail, read)
    assert bed.client.mget(keys.mail_slots("c1")[:2]) == [None, "b" * MIN_RESULT_BYTES]
    assert letters(mail.read()) == "b"


def test_two_workers_never_read_one_mailbox_at_once(bed: ResultsHarness, mail: Mailboxes, raw: redis.Redis) -> None:
    other = Mailboxes(raw, 3000)
    fill(bed, "c1", (0,), "a")
    read = mail.read()
    fill(bed, "c1", (1,), "b")
    fill(bed, "c2", (0,), "c")
    assert letters(other.read(everywhere=True)) == "c"
    finish(mail, read)
    assert letters(other.read()) == "b"


def test_mailbox_of_a_dead_worker_is_read_by_others(
    bed: ResultsHarness, mail: Mailboxes, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bed, "c1", (0,), "a")
    assert letters(mail.read()) == "a"
    holder, ends, next_slot = str(bed.client.hget(keys.MAIL_CLAIMS, "c1")).split()
    now = bed.client.time()[0]
    assert now - 60 < int(ends) / 1000 <= now + 11
    assert letters(Mailboxes(raw, 3000).read(everywhere=True)) == ""
    # As when that time has passed, and as after a clock that was ahead.
    for moment in (now - 1, now + 3600):
        bed.client.hset(keys.MAIL_CLAIMS, "c1", f"{holder} {1000 * moment} {next_slot}")
        assert letters(Mailboxes(raw, 3000).read(everywhere=True)) == "a"


def test_claim_of_a_removed_cluster_is_deleted(bed: ResultsHarness, mail: Mailboxes) -> None:
    fill(bed, "c1", (0,))
    fill(bed, "c2", (0,))
    finish(mail, mail.read())
    assert set(bed.client.hkeys(keys.MAIL_CLAIMS)) == {"c1", "c2"}
    bed.registry.remove_cluster("c1")
    mail.read(everywhere=True)
    assert set(bed.client.hkeys(keys.MAIL_CLAIMS)) == {"c2"}


@pytest.mark.parametrize("flag", ["", "-1", "99", "nan", "1e", "x" * 100_000, b"\xff", "7"])
def test_result_is_found_despite_a_malformed_flag(bed: ResultsHarness, mail: Mailboxes, flag: str | bytes) -> None:
    fill(bed, "c1", (4,), "a")
    fill(bed, "c2", (0,), "b")
    bed.client.set(keys.mail_flag("c1"), flag)
    read = mail.read()
    assert sorted(letters(read)) == ["a", "b"]
    finish(mail, read)
    assert count_waiting_results(bed.client, ["c1", "c2"]) == 0
    assert not bed.client.exists(keys.mail_flag("c1"))


def test_many_clusters_are_read_in_one_round_trip(bed: ResultsHarness, mail: Mailboxes) -> None:
    """More than one command takes; one command reads the flags of eight."""
    for number in range(1200):
        bed.client.hset(keys.CLUSTERS, f"m{number}", "{}")
    fill(bed, "m7", (3,), "a")
    fill(bed, "m1111", (9,), "b")
    bed.client.config_resetstat()
    read = mail.read()
    assert sorted(letters(read)) == ["a", "b"]
    calls = {name: kind["calls"] for name, kind in bed.client.info("commandstats").items()}
    assert sum(calls.values()) <= 40 + 1200 / 8, calls
    finish(mail, read)
    assert mail.read().slots == []


def test_slot_with_arbitrary_bytes_is_read(bed: ResultsHarness, mail: Mailboxes) -> None:
    put(bed.client, 0, b"\xff\xfe" * MIN_RESULT_BYTES)
    fill(bed, "c2", (0,), "b")
    read = mail.read()
    assert len(read.slots) == 2
    finish(mail, read)
    assert count_waiting_results(bed.client, ["c1", "c2"]) == 0


def test_runs_whose_result_waits_in_the_mailbox_are_not_lost(bed: ResultsHarness) -> None:
    bed.add("c2")
    run, other = bed.open("c1"), bed.open("c2")
    fill(bed, "c1", (0,))
    bed.now += 60 + bed.settings.lost_after + 1
    assert bed.sweep() == [f"c2/s1/{other}"]
    assert bed.sweep() == []
    # But it must end, even if somebody keeps adding messages.
    bed.now += 60
    assert bed.sweep() == [f"c1/s1/{run}"]


@pytest.fixture
def dying(raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Mailboxes]:
    """A new reader, as after the death of earlier ones, whose claims have expired."""

    def new_reader() -> Mailboxes:
        monkeypatch.setattr(hubs_mail, "_CLAIM_MILLISECONDS", 1)
        began = raw.time()
        wait_for(lambda: raw.time() > (began[0], began[1] + 2000), 10, "the claims to end", interval=0)
        return Mailboxes(raw, 3000)

    return new_reader


def _read_until_empty(mail: Mailboxes) -> list[str]:
    reads = []
    while (read := mail.read(everywhere=True)).slots or read.has_more:
        reads.append("".join(sorted(letters(read))))
        finish(mail, read)
    return reads


def test_slots_of_a_dead_reader_are_read_one_by_one(
    bed: ResultsHarness, mail: Mailboxes, dying: Callable[[], Mailboxes]
) -> None:
    reader = dying()
    fill(bed, "c1", (0, 5), "a")
    fill(bed, "c2", (1,), "b")
    assert sorted(letters(reader.read())) == ["a", "a", "b"]
    survivor = dying()
    fill(bed, "c3", (1,), "c")
    # Mailboxes of which no reader has died come first.
    reads = _read_until_empty(survivor)
    assert (reads[0], sorted(reads[1:])) == ("c", ["", "", "a", "a", "b"])
    assert bed.rejected() == {}
    assert not bed.client.exists(keys.MAIL_SUSPECTS, keys.MAIL_READING)


def test_slot_that_killed_two_readers_is_dropped_and_counted(
    bed: ResultsHarness, mail: Mailboxes, dying: Callable[[], Mailboxes]
) -> None:
    reader = dying()
    fill(bed, "c1", (0,), "x")
    fill(bed, "c2", (1,), "b")
    assert sorted(letters(reader.read())) == ["b", "x"]
    for _ in range(4):
        reader = dying()
        read = reader.read()
        while letters(read) != "x" and not read.dropped:
            finish(reader, read)
            read = reader.read()
        if read.dropped:
            break
    assert read.dropped == [keys.mail_slot("c1", 0).encode()]
    assert bed.rejected() == {"reader_died": 1}
    assert bed.client.hgetall(keys.REJECTED_MAIL) == {"c1": "1"}
    finish(reader, read)
    _read_until_empty(reader)
    assert count_waiting_results(bed.client, ["c1", "c2"]) == 0
    # The cluster's next result is read as any other.
    fill(bed, "c1", (0,), "a")
    assert letters(reader.read()) == "a"


def test_surviving_reader_leaves_no_suspect_slots(
    bed: ResultsHarness, mail: Mailboxes, dying: Callable[[], Mailboxes]
) -> None:
    reader = dying()
    fill(bed, "c1", (0,), "a")
    read = reader.read()
    # Redis refused to store it.
    reader.empty(read.slots, [b""])
    assert _read_until_empty(dying()) == ["a"]


def test_cluster_has_a_share_of_the_bytes_of_a_read(
    bed: ResultsHarness, mail: Mailboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs_mail, "_CLUSTER_BYTES", 5000)
    fill(bed, "c1", (0, 1, 2), "a", length=3000)
    fill(bed, "c2", (0, 1, 2), "b", length=2000)
    read = mail.read()
    assert (Counter(letters(read)), read.has_more) == ({"a": 1, "b": 2}, True)
    finish(mail, read)
    read = mail.read()
    assert (Counter(letters(read)), read.has_more) == ({"a": 1, "b": 1}, True)
    finish(mail, read)
    assert (letters(mail.read()), mail.read().has_more) == ("a", False)
