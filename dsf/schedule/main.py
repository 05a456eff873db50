"""Runs beat: `celery -A dsf.celery beat` without Celery's imports for other commands, such as Flower."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dsf.errors import DsfError
from dsf.process import memory

if TYPE_CHECKING:
    from dsf.settings import Settings


def _is_unforeseen(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], DsfError)


def run(config: Settings) -> int:
    """Run beat until SIGTERM or SIGINT."""
    memory.prepare()
    from celery import signals

    # The application is created at import, depending on the role.
    from dsf.celery import app

    signals.beat_init.connect(lambda **_: memory.settle(), weak=False)
    # Celery logs the error with a traceback; the caller prints ours as one sentence.
    logging.getLogger("celery.beat").addFilter(_is_unforeseen)

    app.Beat(loglevel=config.log_level, quiet=True).run()
    return 0
