"""Threads that work with Redis until stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

import redis

import dsf.log

log = dsf.log.get(__name__)


def repeat(
    step: Callable[[], float],
    stopping: threading.Event,
    *,
    doing: str,
    pause: float = 1.0,
    wait: Callable[[float], object] | None = None,
) -> None:
    """Call `step`, which returns the seconds until its next call, until `stopping` is set.

    No exception ends it, or the thread's work would stop for good: it continues after `pause` seconds. An outage of
    Redis is logged once. `wait` is for interruptible waits.
    """
    is_logged = False
    while not stopping.is_set():
        try:
            seconds = step()
            is_logged = False
        except redis.RedisError as error:
            if not is_logged:
                log.warning("redis fails, will be tried again", doing=doing, error=str(error))
            is_logged, seconds = True, pause
        except Exception:
            log.exception("failed, will be tried again", doing=doing)
            seconds = pause
        (wait or stopping.wait)(seconds)
