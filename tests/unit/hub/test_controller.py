"""The loop that reconciles keys."""

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
from dsf.kube.session import ApiServerError
from dsf.process.outage import Outage
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
def test_failed_key_is_retried_and_delays_no_other(run: Run, error: Exception) -> None:
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
    # A success resets the number of failures.
    assert controller.queue.retry(KEY) <= 0.005
    # An unavailable Redis is logged once, whatever the number of keys and attempts.
    expected = 1 if isinstance(error, redis.ConnectionError) else 3
    assert sum(line["log_level"] in ("warning", "error") for line in lines) == expected


@pytest.mark.parametrize(
    ("error", "min_delay", "max_delay"),
    [
        (ApiServerError("busy", 429, 30.0), 30, 36),
        (ApiServerError("busy", 429), 1, 1.2),
        (ApiServerError("starting", 503), 1, 1.2),
        (ApiServerError("maintenance", 503, 3600.0), 60, 72),
        (ApiServerError("not valid", 422), 0, 0.005),
    ],
)
def test_failed_key_is_requeued_after_the_delay_of_its_error(
    run: Run, error: ApiServerError, min_delay: float, max_delay: float
) -> None:
    failed_names: list[str] = []

    def reconcile(key: ObjectKey) -> float | None:
        if key.name not in failed_names:
            failed_names.append(key.name)
            raise error
        return None

    with structlog.testing.capture_logs() as lines:
        controller = run(reconcile)
        controller.queue.add(KEY)
        wait_for(lambda: lines)
    assert min_delay <= lines[0]["after"] <= max_delay


def test_reconcile_can_requeue_its_key(run: Run) -> None:
    calls: list[ObjectKey] = []

    def reconcile(key: ObjectKey) -> float | None:
        calls.append(key)
        return 0.01 if len(calls) < 3 else None

    controller = run(reconcile)
    controller.queue.add(KEY)
    wait_for(lambda: controller.results == {"requeued": 2, "done": 1})


def test_outage_and_its_end_are_each_logged_once() -> None:
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

    controller = Controller("test", reconcile, workers=1, outage=Outage("Redis"))
    controller.start()
    try:
        assert controller.is_progressing()
        monkeypatch.setattr("dsf.hub.controller.STUCK_SECONDS", 0.2)
        controller.queue.add(KEY)
        wait_for(lambda: len(controller.queue) == 0)
        # A worker is busy and the queue is empty.
        assert controller.is_progressing()
        time.sleep(0.3)
        assert controller.is_progressing()
        controller.queue.add(OTHER)
        wait_for(lambda: not controller.is_progressing(), 30, "the hanging worker to be found")
        gate.set()
        wait_for(controller.is_progressing, 30, "it to be well again")
    finally:
        gate.set()
        controller.stop()
