"""Events wait for the API server in a separate queue."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

import pytest
import structlog

from dsf.backends import kube_events
from dsf.backends.kube_events import EventRecorder
from dsf.errors import BackendError
from dsf.kube.session import Session
from tests.support.wait import wait_for


class Stalled:
    """A session whose server accepts an event only after `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.requested: list[str] = []
        self.accepted: list[str] = []
        self.timeouts: set[tuple[float, float]] = set()
        self.error: Exception | None = None

    def create(self, path: str, body: dict[str, str], *, timeout: tuple[float, float] = (5.0, 30.0)) -> None:
        self.timeouts.add(timeout)
        self.requested.append(body["note"])
        assert self.go_on.wait(30)
        if self.error is not None:
            raise self.error
        self.accepted.append(body["note"])


@pytest.fixture
def stalled() -> Iterator[Stalled]:
    session = Stalled()
    yield session
    session.go_on.set()


def _recorder(session: Stalled) -> EventRecorder:
    return EventRecorder(cast("Session", session), "hub-1")


def _record(recorder: EventRecorder, *messages: str) -> None:
    for message in messages:
        recorder.record({"kind": "DynamicScorer", "namespace": "hub", "name": "s"}, "Normal", "Reason", message)


def test_stalled_server_does_not_block_recording(stalled: Stalled) -> None:
    recorder = _recorder(stalled)
    _record(recorder, "a", "b")
    assert stalled.accepted == []
    stalled.go_on.set()
    assert recorder.flush(30)
    assert stalled.accepted == ["a", "b"]
    assert all(connect + read <= 5 for connect, read in stalled.timeouts)


def test_excess_events_are_dropped_and_logged(stalled: Stalled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_events, "_MAX_QUEUED_EVENTS", 2)
    recorder = _recorder(stalled)
    _record(recorder, "a")
    wait_for(lambda: stalled.requested)
    with structlog.testing.capture_logs() as lines:
        _record(recorder, *"bcdef")
    assert [line["message"] for line in lines if "dropped" in line["event"]] == [*"def"]
    stalled.go_on.set()
    assert recorder.flush(30)
    _record(recorder, "g")
    assert recorder.flush(30)
    assert stalled.accepted == [*"abcg"]


def test_close_waits_briefly_and_then_discards_events(stalled: Stalled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_events, "_FLUSH_SECONDS", 0.0)
    recorder = _recorder(stalled)
    _record(recorder, "a", "b")
    wait_for(lambda: stalled.requested)
    recorder.close()
    _record(recorder, "c")
    stalled.go_on.set()
    recorder._thread.join(30)
    assert not recorder._thread.is_alive()
    assert stalled.requested == ["a"], "the one that was under way"


def test_close_writes_waiting_events(stalled: Stalled, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may need a long time.
    monkeypatch.setattr(kube_events, "_FLUSH_SECONDS", 60.0)
    stalled.go_on.set()
    recorder = _recorder(stalled)
    _record(recorder, *"abc")
    recorder.close()
    assert stalled.accepted == [*"abc"]


@pytest.mark.parametrize("error", [BackendError("no"), KeyError("what")])
def test_failed_event_does_not_block_later_events(stalled: Stalled, error: Exception) -> None:
    stalled.error = error
    stalled.go_on.set()
    recorder = _recorder(stalled)
    _record(recorder, "a")
    assert recorder.flush(30)
    stalled.error = None
    _record(recorder, "b")
    assert recorder.flush(30)
    assert stalled.accepted == ["b"]
