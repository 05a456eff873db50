"""The loop that works on keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis
import structlog

from dsf.backends.protocol import Kind, ObjectKey
from dsf.errors import BackendError
from dsf.hub.controller import Controller
from dsf.hub.outage import Outage
from dsf.kube.session import ApiServerError
from tests.support.wait import wait_for

KEY = ObjectKey(Kind.CLUSTER, "", "a")
OTHER = ObjectKey(Kind.CLUSTER, "", "b")
Run = Callable[[Callable[[ObjectKey], float | None]], Controller]


@pytest.fixture
def run() -> Iterator[Run]:
    controllers: list[Controller] = []

    def start(reconcile: Callable[[ObjectKey], float | None]) -> Controller:
        controller = Controller("test", reconcile, workers=2, outage=Outage("Redis"))
        controllers.append(controller)
        controller.start()
        return controller

    yield start
    for controller in controllers:
        controller.stop()


@pytest.mark.parametrize(
    "error", [BackendError("full"), redis.ResponseError("no"), redis.ConnectionError("x"), KeyError("x")]
)
def test_an_error_comes_again_and_holds_up_no_other(run: Run, error: Exception) -> None:
    calls: list[str] = []

    def reconcile(key: ObjectKey) -> float | None:
        calls.append(key.name)
        if key == KEY and calls.count("a") < 4:
            raise error
        return None

    with structlog.testing.capture_logs() as lines:
        controller = run(reconcile)
        controller.queue.add(KEY)
        controller.queue.add(OTHER)
        wait_for(lambda: calls.count("a") == 4 and "b" in calls)
        wait_for(lambda: controller.results == {"error": 3, "done": 2})
    # Its next failure counts as the first.
    assert controller.queue.retry(KEY) <= 0.005
    # Redis being away is said once, whatever the number of keys and attempts.
    expected = 1 if isinstance(error, redis.ConnectionError) else 3
    assert sum(line["log_level"] in ("warning", "error") for line in lines) == expected


@pytest.mark.parametrize(
    ("error", "least", "most"),
    [
        (ApiServerError("busy", 429, 30.0), 30, 36),
        (ApiServerError("busy", 429), 1, 1.2),
        (ApiServerError("starting", 503), 1, 1.2),
        (ApiServerError("maintenance", 503, 3600.0), 60, 72),
        (ApiServerError("not valid", 422), 0, 0.005),
    ],
)
def test_failed_key_is_requeued_after_the_delay_of_its_error(
    run: Run, error: ApiServerError, least: float, most: float
) -> None:
    failed: list[str] = []

    def reconcile(key: ObjectKey) -> float | None:
        if key.name not in failed:
            failed.append(key.name)
            raise error
        return None

    with structlog.testing.capture_logs() as lines:
        controller = run(reconcile)
        controller.queue.add(KEY)
        wait_for(lambda: lines)
    assert least <= lines[0]["after"] <= most


def test_reconcile_can_requeue_its_key(run: Run) -> None:
    calls: list[ObjectKey] = []

    def reconcile(key: ObjectKey) -> float | None:
        calls.append(key)
        return 0.01 if len(calls) < 3 else None

    controller = run(reconcile)
    controller.queue.add(KEY)
    wait_for(lambda: controller.results == {"requeued": 2, "done": 1})


def test_an_outage_is_said_once_and_so_is_its_end() -> None:
    outage = Outage("Redis")
    with structlog.testing.capture_logs() as lines:
        assert outage.end() is False
        for _ in range(3):
            outage.begin(OSError("x"))
        assert outage.is_on
        assert outage.end() is True
        assert outage.end() is False
    assert not outage.is_on
    assert [line["log_level"] for line in lines] == ["error", "info"]


def test_workers_that_hang_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def reconcile(key: ObjectKey) -> float | None:
        if key == KEY:
            gate.wait(60)
        return None

    made = Controller("test", reconcile, workers=1, outage=Outage("Redis"))
    made.start()
    try:
        assert made.is_progressing()
        monkeypatch.setattr("dsf.hub.controller.STUCK", 0.2)
        made.queue.add(KEY)
        wait_for(lambda: len(made.queue) == 0)
        # It works, and nothing waits.
        assert made.is_progressing()
        time.sleep(0.3)
        assert made.is_progressing()
        made.queue.add(OTHER)
        wait_for(lambda: not made.is_progressing(), 30, "the hanging worker to be found")
        gate.set()
        wait_for(made.is_progressing, 30, "it to be well again")
    finally:
        gate.set()
        made.stop()
