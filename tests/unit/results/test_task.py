"""The task around it: nothing is lost while Redis is away, and a poison message does not block the worker."""

from __future__ import annotations

import threading

import pytest
import redis
from celery.exceptions import Reject

from dsf.results import lifetime
from dsf.tasks import ingest as module


class Fake:
    """Fails with each of the errors in turn, then takes the result."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.refused: list[str] = []

    def handle(self, envelope: object) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return f"took {envelope}"

    def refuse(self, reason: str) -> None:
        self.refused.append(reason)


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
    use(monkeypatch, error, error)
    assert module.ingest("x") == "took x"


def test_the_message_goes_back_when_the_worker_stops(
    monkeypatch: pytest.MonkeyPatch, stopping: threading.Event
) -> None:
    use(monkeypatch, redis.ConnectionError("refused"))
    stopping.set()
    with pytest.raises(Reject) as caught:
        module.ingest("x")
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
    assert module.ingest("x") == "malformed"
    assert (len(fake.errors), fake.refused) == (1, ["malformed"])


def test_nothing_but_an_envelope_is_needed(monkeypatch: pytest.MonkeyPatch, stopping: threading.Event) -> None:
    use(monkeypatch)
    assert module.ingest() == "took None"
