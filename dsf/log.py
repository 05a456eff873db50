"""Logging: one line per event, a constant message and key=value context, as text or as JSON.

Everything goes through the standard library, so that Celery, uvicorn and the Kubernetes client look the same.
"""

from __future__ import annotations

import logging
import logging.config
import sys
from typing import Any

import structlog

from dsf.settings import Settings

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


def setup(settings: Settings) -> None:
    """Send all logging of this process to standard error in the chosen format. Calling it again changes the format."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    # urllib3 logs every retried request with its URL; the reasons are in our own messages.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    # watchfiles logs every change that it sees; what a change means is in our own messages.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def get(name: str) -> structlog.stdlib.BoundLogger:
    """A logger for one module: `log = dsf.log.get(__name__)`, then `log.info("score written", cluster=..., n=...)`."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger
