"""Results that wait are taken in many at once, and each of them fares as if it were alone."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest

from dsf import keys
from dsf.celery import make_app
from dsf.messages import PACKING
from dsf.results import transport
from dsf.results.inbox import Letter
from dsf.settings import settings
from tests.integration.results.bed import Bed
from tests.integration.results.push import message, push
from tests.integration.results.workerprocess import WorkerProcess
from tests.support.wait import wait_for


@pytest.fixture
def connection(bed: Bed, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[kombu.Connection]:
    """The connection of a results worker that takes up to 4 results at once."""
    monkeypatch.setenv("DSF_RESULTS_GROUP", "4")
    # However slow the machine is.
    monkeypatch.setattr(transport, "_AT_ONCE", 60.0)
    settings.cache_clear()
    app = make_app(bed.settings.model_copy(update={"role": "results"}))
    with app.connection_for_read() as opened:
        yield opened
    app.close()
    settings.cache_clear()


class Taken:
    """What a consumer was handed."""

    def __init__(self, connection: kombu.Connection) -> None:
        self.connection = connection
        self.messages: list[Any] = []
        self._queue = kombu.Queue(keys.RESULTS_QUEUE, exchange="", no_declare=True)

    def next(self) -> list[dict[str, Any]]:
        """The envelopes of the next message."""
        count = len(self.messages)
        while len(self.messages) == count:
            self.connection.drain_events(timeout=10)
        return [json.loads(text) for text in self.messages[-1].payload[0]]

    def __enter__(self) -> Taken:
        self._consumer = kombu.Consumer(
            self.connection, [self._queue], callbacks=[lambda _, found: self.messages.append(found)], accept=["json"]
        )
        self._consumer.consume()
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.cancel()


def wait_in_line(bed: Bed, numbers: range) -> None:
    for number in numbers:
        bed.client.lpush(keys.RESULTS_QUEUE, json.dumps(message([{"n": number}], argsrepr=f"({number})")))


def order(bed: Bed, limit: int = 10_000) -> list[Any]:
    """The numbers of those in the queue, the next first."""
    with_bodies = [Letter.open(item.encode(), limit) for item in bed.client.lrange(keys.RESULTS_QUEUE, 0, -1)]
    return [json.loads(letter.envelope)["n"] for letter in reversed(with_bodies)]


def test_those_that_wait_come_together(bed: Bed, connection: kombu.Connection) -> None:
    wait_in_line(bed, range(6))
    with Taken(connection) as taken:
        assert taken.next() == [{"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}]
        assert taken.messages[0].headers["argsrepr"] == "4 results: (0), (1), (2), (3)"
        assert taken.next() == [{"n": 4}, {"n": 5}]
        assert bed.client.hlen(keys.UNACKED) == 2
        for found in taken.messages:
            found.ack()
        assert bed.client.exists(keys.UNACKED, keys.RESULTS_QUEUE) == 0
        assert list(bed.client.scan_iter(keys.taken_list("*"))) == []


@pytest.mark.parametrize("how", ["rejected", "closed"])
def test_what_is_not_finished_goes_back_in_order(bed: Bed, connection: kombu.Connection, how: str) -> None:
    wait_in_line(bed, range(6))
    with Taken(connection) as taken:
        taken.next()
        if how == "rejected":
            taken.messages[0].reject(requeue=True)
            # Behind those that wait, as any message that is rejected.
            assert order(bed) == [4, 5, 0, 1, 2, 3]
    if how == "closed":
        connection.close()
        assert order(bed) == [0, 1, 2, 3, 4, 5]
    assert bed.client.hlen(keys.UNACKED) == 0


def test_what_a_dead_worker_had_taken_goes_back(bed: Bed, connection: kombu.Connection) -> None:
    wait_in_line(bed, range(6))
    with Taken(connection) as taken:
        taken.next()
        # As if it had been taken long ago by somebody else.
        bed.client.zadd(keys.UNACKED_INDEX, {taken.messages[0].delivery_tag: 1.0})
        qos = connection.default_channel.qos
        qos._vrestore_count = 0
        qos.restore_visible()
        assert order(bed) == [0, 1, 2, 3, 4, 5]


def test_an_answer_that_was_lost_leaves_nothing_behind(bed: Bed, connection: kombu.Connection) -> None:
    wait_in_line(bed, range(3))
    with Taken(connection) as taken:
        assert len(taken.next()) == 3
        channel = connection.default_channel
        # It had been moved, and nobody came to know.
        bed.client.rpush(channel.taken, json.dumps(message([{"n": 99}])))
        wait_in_line(bed, range(10, 12))
        assert taken.next() == [{"n": 99}, {"n": 10}, {"n": 11}]
        assert bed.client.llen(channel.taken) == 0


def test_they_are_bounded_in_bytes(bed: Bed, connection: kombu.Connection) -> None:
    large = "x" * int(1.25 * settings().max_result_message_bytes)
    for number in range(3):
        bed.client.lpush(keys.RESULTS_QUEUE, json.dumps(message([{"n": number}]) | {"padding": large}))
    with Taken(connection) as taken:
        assert taken.next() == [{"n": 0}, {"n": 1}]
        assert taken.next() == [{"n": 2}]


@pytest.fixture
def bounded(bed: Bed) -> Iterator[Bed]:
    """The hub on a Redis that takes no longer values than ours do (`deploy/redis/redis.conf`)."""
    before = bed.client.config_get("proto-max-bulk-len")["proto-max-bulk-len"]
    bed.client.config_set("proto-max-bulk-len", "16mb")
    yield bed
    bed.client.config_set("proto-max-bulk-len", before)


def plain(envelope: object, **headers: object) -> bytes:
    """A message as agents make it: as short as UTF-8 has it."""
    call = message([None], **headers) | {"body": json.dumps([[envelope], {}], ensure_ascii=False)}
    call["properties"]["body_encoding"] = None
    return json.dumps(call, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize(("letter", "number"), [("é", 3_140_000), ("\\", 1_570_000)], ids=["letters", "escapes"])
def test_the_longest_can_be_noted(bounded: Bed, connection: kombu.Connection, letter: str, number: int) -> None:
    item = plain({"n": letter * number})
    assert 6_200_000 < len(item) < settings().max_result_message_bytes * PACKING
    bounded.client.lpush(keys.RESULTS_QUEUE, item)
    wait_in_line(bounded, range(1))
    with Taken(connection) as taken:
        assert [envelope["n"] for envelope in taken.next()] == [letter * number, 0]
        assert bounded.client.exists(connection.default_channel.taken, keys.RESULTS_QUEUE) == 0
        # It can also come again.
        connection.close()
    assert order(bounded, limit=settings().max_result_message_bytes) == [letter * number, 0]


def test_several_long_ones_can_be_noted(bounded: Bed, connection: kombu.Connection) -> None:
    long = ["ж" * number for number in (1_560_000, 1_570_000, 3_000_000, 2_900_000)]
    for text in long:
        bounded.client.lpush(keys.RESULTS_QUEUE, plain({"n": text}))
    with Taken(connection) as taken:
        assert [[envelope["n"] for envelope in taken.next()] for _ in range(3)] == [long[:2], long[2:3], long[3:]]
        assert bounded.client.exists(connection.default_channel.taken, keys.RESULTS_QUEUE) == 0


def test_what_was_left_behind_is_bounded_too(bounded: Bed, connection: kombu.Connection) -> None:
    long = ["ж" * 3_000_000, "и" * 3_000_000]
    wait_in_line(bounded, range(1))
    with Taken(connection) as taken:
        taken.next()
        bounded.client.rpush(connection.default_channel.taken, plain({"n": long[0]}))
        bounded.client.lpush(keys.RESULTS_QUEUE, plain({"n": long[1]}))
        assert taken.next() == [{"n": long[1]}]
        wait_in_line(bounded, range(1, 2))
        assert taken.next() == [{"n": long[0]}, {"n": 1}]
        assert bounded.client.llen(connection.default_channel.taken) == 0


def test_half_a_character_makes_nothing_longer(bounded: Bed, connection: kombu.Connection) -> None:
    """UTF-8 does not have it: it comes as an escape, and goes back as what it was."""
    pushed = json.loads(plain({"n": "ж" * 3_000_000}))
    pushed["headers"]["argsrepr"] = "\ud800"
    bounded.client.lpush(keys.RESULTS_QUEUE, json.dumps(pushed, ensure_ascii=False).encode("utf-8", "backslashreplace"))
    with Taken(connection) as taken:
        assert taken.next() == [{"n": "ж" * 3_000_000}]
        (note,) = bounded.client.hvals(keys.UNACKED)
        assert Letter.open(json.loads(note)[0]["items"][0].encode("utf-8", "surrogatepass"), 2**21).argsrepr == "\ud800"


def test_one_that_cannot_be_noted_is_refused(
    bounded: Bed, connection: kombu.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be as long as the settings allow."""
    monkeypatch.setenv("DSF_MAX_RESULT_MESSAGE_BYTES", str(5 * 2**20))
    settings.cache_clear()
    bounded.client.lpush(keys.RESULTS_QUEUE, plain({"n": "\\" * 2_150_000}))
    wait_in_line(bounded, range(1))
    with Taken(connection) as taken:
        assert taken.next() == [{"n": 0}]
        assert bounded.client.exists(connection.default_channel.taken, keys.RESULTS_QUEUE) == 0
    assert bounded.rejected() == {"malformed": 1}


def test_one_bad_result_does_not_harm_those_beside_it(bed: Bed, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "_out" / "managedclusters").mkdir(parents=True)
    good = bed.backlog(40)
    forged = {**good[3], "sig": "00" * 32}
    # What a decoder of JSON with types of its own would stumble over.
    typed = {"__type__": "datetime", "__value__": "no date"}
    bad: list[object] = [forged, typed, {**good[5], "extra": typed}, None, [[[[]]]], "text", {"v": "\ud800"}]
    mixed: list[object] = []
    for number, envelope in enumerate(good):
        mixed.append(envelope)
        if number < len(bad):
            mixed.append(bad[number])
    for envelope in mixed:
        bed.client.lpush(keys.RESULTS_QUEUE, json.dumps(message([envelope])))
    with WorkerProcess(redis_url, tmp_path) as worker:
        wait_for(lambda: bed.state().count("ok") == 40, 30, "the good ones")
        wait_for(lambda: bed.client.llen(keys.RESULTS_QUEUE) + bed.client.hlen(keys.UNACKED) == 0, 10, "no leftovers")
        assert worker.stop() == 0
    # The one with something extra is the sixth good one, and comes before it.
    rejected = bed.rejected()
    assert rejected.pop("replayed") == 1
    assert rejected == {"bad_signature": 1, "malformed": 5}
    assert bed.state().open == 0
    assert "Traceback" not in worker.log()


def decoded(text: str) -> str:
    """The events in one message of Celery's."""
    return base64.b64decode(json.loads(text)["body"]).decode()


def test_they_can_be_taken_one_by_one(bed: Bed, redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "_out" / "managedclusters").mkdir(parents=True)
    push(bed, redis_url, bed.backlog(20))
    seen: list[str] = []
    with bed.client.pubsub() as events:
        # Before there is a worker: it may be quicker than this process.
        events.psubscribe("/0.celeryev/*")
        assert (events.get_message(timeout=30) or {}).get("type") == "psubscribe"

        def received() -> int:
            while (found := events.get_message(timeout=0.1)) is not None:
                if found["type"] == "pmessage":
                    seen.append(str(found["data"]))
            return sum(text.count("task-succeeded") for text in map(decoded, seen))

        with WorkerProcess(redis_url, tmp_path, DSF_RESULTS_GROUP="1"):
            wait_for(lambda: bed.state().count("ok") == 20, 30, "all of them")
            wait_for(lambda: received() == 20, 20, "an event for each")
