"""Logging: one line per event, a constant message and key=value context, as text or as JSON.

All logging uses the standard library, so that Celery, uvicorn and the Kubernetes client have the same format.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, cast

from dsf import foreignvariables
from dsf.settings import Settings, unknown_variables
from dsf.text import listed, visible

if TYPE_CHECKING:
    import structlog

#: Settings to apply at the first logged line.
_prepared: Settings | None = None


def prepare(settings: Settings) -> None:
    """Set up logging at the first logged line: a command that logs nothing does not load structlog."""
    global _prepared  # noqa: PLW0603 - one per process, as logging itself
    _prepared = settings
    logging.getLogger().setLevel(settings.log_level)


def setup(settings: Settings) -> None:
    """Send all logging of this process to standard error in the chosen format. Calling it again changes the format.

    A line names variables that are no settings: one that was renamed may have made this process safer.
    """
    _configure(settings)
    if unknown := unknown_variables(os.environ):
        # Never their values.
        get(__name__).warning(
            "unknown settings in the environment are ignored; docs/settings.md has all, docs/migration.md renamed ones",
            names=listed(unknown, 20),
        )
    for name, instead in foreignvariables.removed().items():
        get(__name__).warning("a variable of a library is ignored", name=name, instead=instead)


def _configure(settings: Settings) -> None:
    import structlog

    global _prepared  # noqa: PLW0603
    _prepared = None
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _visible,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    # urllib3 logs every retried request with its URL; our own messages have the reasons.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    if settings.log_level != "DEBUG":
        # Celery logs two lines for each task, which would be a fifth of a cycle's CPU. Failures are in its result, and
        # in Flower.
        for name in ("celery.worker.strategy", "celery.app.trace"):
            logging.getLogger(name).setLevel(logging.WARNING)
    # At level DEBUG, cloud libraries log requests including tokens.
    for library in ("azure", "botocore", "google", "msal"):
        logging.getLogger(library).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _visible(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape terminal control characters: names and messages come from external services."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = visible(value, allowed_characters="\n\t")
    return event


class _Logger:
    """A structlog logger that is created at the first logged line."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        import structlog

        if _prepared is not None:
            _configure(_prepared)
        return getattr(structlog.stdlib.get_logger(self._name), attribute)


def get(name: str) -> structlog.stdlib.BoundLogger:
    """A logger for one module: `log = dsf.log.get(__name__)`, then `log.info("score written", cluster=..., n=...)`."""
    return cast("structlog.stdlib.BoundLogger", _Logger(name))


class Throttle:
    """Rate limit of log lines that clients can cause: one per kind and `every` seconds, and how many were omitted.

    Thread-safe.
    """

    def __init__(self, every: float = 1.0) -> None:
        self._every = every
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}

    def take(self, kind: str) -> int | None:
        """Return None to omit this line; else the number of omitted lines of this kind before it."""
        now = time.monotonic()
        with self._lock:
            at, left_out = self._last.get(kind, (float("-inf"), 0))
            if now - at < self._every:
                self._last[kind] = (at, left_out + 1)
                return None
            self._last[kind] = (now, 0)
            return left_out
