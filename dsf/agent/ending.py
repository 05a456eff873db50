"""Whether this worker has been told to end."""

from __future__ import annotations

from typing import Any

from celery.worker import state


def is_ending() -> bool:
    """Whether the worker has been told to end: a signal handler says so."""
    # An exit code once it is to end, and 0 is one.
    codes: list[Any] = [state.should_stop, state.should_terminate]
    return any(code is not None and code is not False for code in codes)
