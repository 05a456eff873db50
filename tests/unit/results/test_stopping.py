"""How the results worker's threads learn that it ends."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from celery import bootsteps

from dsf.results.worker import Service


def test_threads_are_told_to_stop_before_any_step_of_celery_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Service, "_prepared", lambda *_: ([], []))
    service = Service(Mock())
    # What Blueprint.stop does first.
    bootsteps.Blueprint().close(Mock(steps=[service]))
    assert service._stopping.is_set()
    assert service._wake.is_set()
