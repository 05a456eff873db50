"""A stage as a task: signals, what becomes of it for Celery, and its request while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, signals
from celery.exceptions import Retry

from dsf.agent.tracer import tracer
from dsf.errors import CycleError

NAMES = ("prerun", "postrun", "success", "failure", "retry")


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Signals in the order in which they came."""
    found: list[tuple[str, dict[str, Any]]] = []
    receivers = []
    for name in NAMES:

        def receive(name: str = name, **said: Any) -> None:
            found.append((name, said))

        receivers.append((getattr(signals, f"task_{name}"), receive))
    for signal, receive in receivers:
        signal.connect(receive)
    yield found
    for signal, receive in receivers:
        signal.disconnect(receive)


@pytest.mark.parametrize(
    ("error", "state", "said"),
    [
        (None, "SUCCESS", ["prerun", "success", "postrun"]),
        (CycleError("score", "http_error", "HTTP 500"), "FAILURE", ["prerun", "failure", "postrun"]),
        (Retry(exc=CycleError("score", "http_error", "HTTP 500")), "RETRY", ["prerun", "retry", "postrun"]),
    ],
)
def test_signals_and_outcome(
    error: Exception | None, state: str, said: list[str], heard: list[tuple[str, dict[str, Any]]]
) -> None:
    app = Celery(set_as_current=False)
    requests: list[Any] = []

    @app.task(bind=True, shared=False, ignore_result=True, throws=(CycleError,))
    def stage(self: Any, scorer: str) -> str:
        requests.append(self.request)
        if error is not None:
            raise error
        return scorer

    value, kind, seconds, text = tracer(stage)(
        "an-id", ("sample",), {}, {"id": "an-id", "args": ("sample",), "root_id": "r"}
    )
    (request,) = requests
    assert (request.id, request.root_id, request.called_directly) == ("an-id", "r", False)
    assert stage.request.id is None
    assert [name for name, _ in heard] == said
    first, last = heard[0][1], heard[-1][1]
    assert (first["task_id"], first["args"], first["sender"].name) == ("an-id", ("sample",), stage.name)
    assert last["state"] == state
    if error is None:
        assert (value, kind, text) == ("sample", None, "'sample'")
        assert seconds >= 0
    else:
        assert kind.state == state
        assert str(error) in value.traceback
