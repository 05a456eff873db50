"""Shutdown state of this worker."""

from __future__ import annotations

from typing import Any

from celery.worker import state


def is_ending() -> bool:
    """Whether a signal handler has requested shutdown."""
    # Exit codes, maybe 0, once requested.
    codes: list[Any] = [state.should_stop, state.should_terminate]
    return any(code is not None and code is not False for code in codes)
