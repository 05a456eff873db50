"""The task around it: nothing is lost while Redis is away, and a poison message does not block the worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis
from celery.exceptions import Reject

from dsf.results import lifetime
from dsf.settings import settings
from dsf.tasks import ingest as module


class Fake:
    """Fails with each of the errors in turn, then takes the results."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.refused: list[str] = []
        #: What Redis has against this one, until it is taken out.
        self.trouble: dict[object, list[Exception]] = {}
        self.took: list[object] = []

    def handle_all(self, envelopes: Sequence[object]) -> list[str | redis.ResponseError]:
        if self.errors:
            raise self.errors.pop(0)
        answers: list[str | redis.ResponseError] = []
        for envelope in envelopes:
            if troubles := self.trouble.get(envelope):
                trouble = troubles.pop(0)
                if not isinstance(trouble, redis.ResponseError):
                    raise trouble
                answers.append(trouble)
            else:
                self.took.append(envelope)
                answers.append("ok")
        return answers

    def refuse(self, reason: str) -> None:
        self.refused.append(reason)


@pytest.fixture
def settings_env() -> Iterator[None]:
    """The settings are read anew, and once more afterwards."""
    yield
    settings.cache_clear()


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    event = threading.Event()
    monkeypatch.setattr(lifetime, "stopping", event)
    monkeypatch.setattr(module, "_FIRST_WAIT", 0.001)
    return event


def use(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> Fake:
    fake = Fake(*errors)
    monkeypatch.setattr(module, "_ingest", lambda: fake)
    return fake


@pytest.mark.parametrize(
    "error",
    [
        redis.ConnectionError("refused"),
        redis.TimeoutError("slow"),
        redis.BusyLoadingError("loading"),
        redis.ReadOnlyError("a replica"),
        redis.OutOfMemoryError("full"),
        redis.exceptions.NoPermissionError("not now"),
        redis.ResponseError("MISCONF cannot write to disk"),
    ],
)
def test_it_waits_while_redis_cannot(
    monkeypatch: pytest.MonkeyPatch, stopping: threading.Event, error: Exception
) -> None:
    fake = use(monkeypatch, error, error)
    assert module.ingest("7") == "ok"
    assert (fake.took, fake.errors) == ([7], [])


def test_waiting_is_living(
    monkeypatch: pytest.MonkeyPatch, stopping: threading.Event, tmp_path: Path, settings_env: None
) -> None:
    alive = tmp_path / "alive"
    monkeypatch.setenv("DSF_ROLE", "results")
    monkeypatch.setenv("DSF_RESULTS_LIVENESS_FILE", str(alive))
    settings.cache_clear()
    use(monkeypatch, redis.ConnectionError("refused"))
    assert module.ingest("7") == "ok"
    assert alive.exists()


def test_the_message_goes_back_when_the_worker_stops(
    monkeypatch: pytest.MonkeyPatch, stopping: threading.Event
) -> None:
    use(monkeypatch, redis.ConnectionError("refused"))
    stopping.set()
    with pytest.raises(Reject) as caught:
        module.ingest("7")
    assert caught.value.requeue


@pytest.mark.parametrize(
    "error",
    [
        redis.ResponseError("WRONGTYPE Operation against a key"),
        redis.ResponseError("value is not an integer script: 1ca8"),
        RuntimeError("a bug"),
    ],
)
def test_a_message_that_the_books_cannot_take_is_dropped(
    monkeypatch: pytest.MonkeyPatch, stopping: threading.Event, error: Exception
) -> None:
    fake = use(monkeypatch, error, error)
    assert module.ingest("7") == "malformed"
    assert (len(fake.errors), fake.refused) == (1, ["malformed"])


@pytest.mark.parametrize(("text", "envelope"), [('{"v": 1', None), ("[" * 100_000, None), ('"x"', "x"), (7, None)])
def test_whatever_was_sent_is_examined(
    monkeypatch: pytest.MonkeyPatch, stopping: threading.Event, text: str, envelope: object
) -> None:
    fake = use(monkeypatch)
    assert module.ingest(text) == "ok"
    assert fake.took == [envelope]


def test_of_several_each_has_its_own_fate(monkeypatch: pytest.MonkeyPatch, stopping: threading.Event) -> None:
    fake = use(monkeypatch)
    fake.trouble = {2: [redis.ResponseError("WRONGTYPE x")], 3: [redis.ResponseError("MISCONF x")] * 2}
    assert module.ingest("1", "2", "3", "4") == "malformed 1, ok 3"
    assert fake.took == [1, 4, 3]
    assert fake.refused == ["malformed"]


def test_a_bug_that_one_of_them_wakes_spares_the_others(
    monkeypatch: pytest.MonkeyPatch, stopping: threading.Event
) -> None:
    fake = use(monkeypatch, RuntimeError("a bug"))
    fake.trouble = {2: [RuntimeError("a bug")]}
    assert module.ingest("1", "2", "3") == "malformed 1, ok 2"
    assert fake.took == [1, 3]
