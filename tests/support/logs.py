"""Restores logging, which belongs to the whole process, so that tests do not influence each other."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import structlog

import dsf.log


@contextlib.contextmanager
def restored_logging() -> Iterator[None]:
    """Undo the logging setup of the code inside.

    Code under test may set up logging, as every process does at its start: to the standard error of that moment. Its
    target is often a file of the test, which is closed with the test, so that every later log line would fail.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    prepared = dsf.log._pending_settings
    configuration = structlog.get_config() if structlog.is_configured() else None
    try:
        yield
    finally:
        dsf.log._pending_settings = prepared
        root.handlers[:] = handlers
        root.setLevel(level)
        if configuration is None:
            structlog.reset_defaults()
        else:
            structlog.configure(**configuration)
