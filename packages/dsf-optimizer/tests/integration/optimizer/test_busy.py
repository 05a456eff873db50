"""An API server that has too much to do, or that is just building its lists: 429."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dsf.kube import lists
from dsf.kube.resources import PLACEMENTS
from dsf.kube.session import ApiServerError
from dsf.optimizer.backend import ManifestClient
from tests.integration.kube.stub import Exchange, StubServer

STATUS = {"kind": "Status", "code": 429, "message": "storage is (re)initializing"}


@contextlib.contextmanager
def busy(times: int, **headers: str) -> Iterator[tuple[ManifestClient, list[float]]]:
    """A hub that refuses this many requests and then has no Placements, and the times of the requests."""
    request_times: list[float] = []

    def script(exchange: Exchange) -> None:
        request_times.append(time.monotonic())
        if len(request_times) <= times:
            exchange.answer(STATUS, 429, **headers)
        else:
            exchange.answer({"kind": "PlacementList", "metadata": {}, "items": []})

    with StubServer(script) as server, contextlib.closing(ManifestClient(server.session())) as client:
        yield client, request_times


def test_busy_server_is_retried_after_its_retry_after_header(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(seconds)

    monkeypatch.setattr(lists, "_DEFAULT_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(lists, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    with busy(1, retry_after="1") as (hub, request_times):
        assert hub.list_objects(PLACEMENTS, "default") == []
    assert pauses == [1]
    assert request_times[1] - request_times[0] >= 1


def test_busy_server_without_retry_after_header_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "_DEFAULT_PAUSE_SECONDS", 0.01)
    with busy(3) as (hub, request_times):
        assert hub.list_objects(PLACEMENTS, "default") == []
    assert len(request_times) == 4


def test_busy_server_is_retried_a_limited_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    # No time passes but in the pauses.
    started = time.monotonic()
    monkeypatch.setattr(lists, "time", SimpleNamespace(monotonic=lambda: started + sum(pauses), sleep=pauses.append))
    monkeypatch.setattr(lists, "_RETRY_SECONDS", 10.0)
    monkeypatch.setattr(lists, "_DEFAULT_PAUSE_SECONDS", 3.0)
    with busy(1000) as (hub, request_times), pytest.raises(ApiServerError, match=r"429: storage is \(re\)initializing"):
        hub.list_objects(PLACEMENTS, "default")
    # Requests are sent after 0, 3, 6 and 9 s.
    assert len(request_times) == 4


def test_retry_after_beyond_the_deadline_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "_RETRY_SECONDS", 0.5)
    with busy(1, retry_after="60") as (hub, request_times), pytest.raises(ApiServerError, match="429"):
        hub.get(PLACEMENTS, "default", "any")
    assert len(request_times) == 1
