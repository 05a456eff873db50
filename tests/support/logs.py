"""Logging is of the whole process: what one test sets up must not be there in the next one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import structlog

import dsf.log


@contextlib.contextmanager
def logging_as_it_was() -> Iterator[None]:
    """Whatever is set up inside is gone afterwards.

    What a test calls may set up logging, as every process does at its start: to the standard error of that moment. That
    is often a file of the test's own, closed with it, into which all that later tests log would fail.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    prepared = dsf.log._prepared
    configuration = structlog.get_config() if structlog.is_configured() else None
    try:
        yield
    finally:
        dsf.log._prepared = prepared
        root.handlers[:] = handlers
        root.setLevel(level)
        if configuration is None:
            structlog.reset_defaults()
        else:
            structlog.configure(**configuration)
