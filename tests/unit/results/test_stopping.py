"""Threads of the results worker stop with it."""

from __future__ import annotations

from unittest.mock import Mock

from celery import bootsteps

from dsf.results.worker import ResultsStep


def test_threads_are_stopped_before_any_step_of_celery() -> None:
    service = Mock()
    step = ResultsStep(Mock(), results=service)
    # Blueprint.stop begins with this call.
    bootsteps.Blueprint().close(Mock(steps=[step]))
    service.begin_stop.assert_called_once_with()
    service.stop.assert_not_called()
