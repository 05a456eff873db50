"""Logging: one line per event with a constant message and key=value context, as text or as JSON.

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
from dsf.settings import Settings, find_unknown_variables
from dsf.text import escape_unprintable, list_names

if TYPE_CHECKING:
    import structlog

#: Settings that the first logged line applies. None if there are none to apply.
_pending_settings: Settings | None = None


def prepare(settings: Settings) -> None:
    """Set up logging at the first logged line, so that a command that logs nothing does not load structlog."""
    global _pending_settings  # noqa: PLW0603 - one per process, as logging itself
    _pending_settings = settings
    logging.getLogger().setLevel(settings.log_level)


def setup(settings: Settings) -> None:
    """Send all log lines of this process to standard error in the format of the settings.

    Later calls change the format. A warning names the unknown DSF_ variables, because a renamed setting no longer
    protects this process.
    """
    _configure(settings)
    if unknown_variables := find_unknown_variables(os.environ):
        # Log the names only, because values may be secrets.
        get(__name__).warning(
            "unknown settings in the environment are ignored; docs/settings.md has all, docs/migration.md renamed ones",
            names=list_names(unknown_variables, 20),
        )
    for name, instead in foreignvariables.list_removed().items():
        get(__name__).warning("a variable of a library is ignored", name=name, instead=instead)


def _configure(settings: Settings) -> None:
    import structlog

    global _pending_settings  # noqa: PLW0603
    _pending_settings = None
    shared_processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _escape_control_characters,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared_processors,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    # Omit urllib3's warnings, which contain the URL of every retried request. The messages of dsf have the reasons.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    if settings.log_level != "DEBUG":
        # Omit Celery's two lines per task, which take a fifth of a cycle's CPU time. Results and Flower have the
        # failures.
        for name in ("celery.worker.strategy", "celery.app.trace"):
            logging.getLogger(name).setLevel(logging.WARNING)
    # Omit the debug lines of cloud libraries, which contain requests with their tokens.
    for library in ("azure", "botocore", "google", "msal"):
        logging.getLogger(library).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared_processors,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _escape_control_characters(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape terminal control characters, because names and messages come from external services."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = escape_unprintable(value, allowed_characters="\n\t")
    return event


class _Logger:
    """Creates a structlog logger at the first logged line, and delegates to it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        import structlog

        if _pending_settings is not None:
            _configure(_pending_settings)
        return getattr(structlog.stdlib.get_logger(self._name), attribute)


def get(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module, as in `dsf.log.get(__name__).info("score written", cluster=..., n=...)`."""
    return cast("structlog.stdlib.BoundLogger", _Logger(name))


class Throttle:
    """Limits the rate of log lines that clients can cause to one per kind and `every` seconds.

    Thread-safe.
    """

    def __init__(self, every: float = 1.0) -> None:
        self._every = every
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}

    def take(self, kind: str) -> int | None:
        """Return the number of omitted lines of this kind since the last logged one, or None to omit this line, too."""
        now = time.monotonic()
        with self._lock:
            at, omitted_lines = self._last.get(kind, (float("-inf"), 0))
            if now - at < self._every:
                self._last[kind] = (at, omitted_lines + 1)
                return None
            self._last[kind] = (now, 0)
            return omitted_lines
