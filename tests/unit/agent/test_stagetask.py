"""A call that has expired is dropped, said once, and not remembered."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals
from celery.worker import state

from dsf.agent import runtime
from dsf.agent.call import StageCall
from dsf.agent.stagetask import StageRequest
from dsf.celery import make_app
from dsf.messages import SCORE_TASK, new_run_id
from tests.conftest import SettingsFactory


def test_what_has_expired_is_said_once_and_not_remembered(
    settings_factory: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(runtime, "current", lambda: SimpleNamespace(clock=SimpleNamespace(now=lambda: now)))
    app = make_app(settings_factory(role="agent", cluster="c1"))
    app.loader.import_default_modules()
    said: list[Any] = []

    def note(request: Any, expired: bool, **_: Any) -> None:
        said.append((request.args[0], expired))

    def request(scorer: str, expires: float | None) -> Any:
        call = StageCall(SCORE_TASK, (scorer, new_run_id()), "spoke.c1", expires=expires)
        return StageRequest(call, app=app, task=app.tasks[SCORE_TASK])

    signals.task_revoked.connect(note)
    try:
        assert not request("by hand", None).revoked()
        assert not request("in time", now + 1).revoked()
        # It is asked when it is received and when it is to run.
        late = request("late", now - 1)
        assert late.revoked()
        assert late.revoked()
    finally:
        signals.task_revoked.disconnect(note)
        app.close()
    assert said == [("late", True)]
    assert not state.revoked
