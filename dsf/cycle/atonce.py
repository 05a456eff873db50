"""Queries several sources in parallel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NoReturn

from dsf.errors import CycleError
from dsf.messages import MESSAGE_LIMIT
from dsf.sources import Payload
from dsf.text import cleaned


def at_once(asks: Mapping[str, Callable[[], Payload]]) -> dict[str, Payload]:
    """Each source's payload by name. All have ended on return.

    Raises CycleError naming each failed source.
    """
    asked = {name: _threads().submit(ask) for name, ask in asks.items()}
    wait(asked.values())
    failed: list[tuple[str, CycleError]] = []
    given: dict[str, Payload] = {}
    for name, future in asked.items():
        try:
            given[name] = future.result()
        except CycleError as error:
            failed.append((name, error))
    if failed:
        _fail(failed)
    return given


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Idle threads are reused, others added on demand. They persist: connections are thread-local, and a handshake per
    cycle costs more than the cycle."""
    # Far more than an agent's concurrent requests: no source waits for another scorer's.
    return ThreadPoolExecutor(1024, thread_name_prefix="dsf-source")


def _fail(failed: list[tuple[str, CycleError]]) -> NoReturn:
    """The reason is the first one's; a retry helps only if it may help all of them."""
    error = failed[0][1]
    text = "; ".join(f"source {name!r}: {error.message}" for name, error in failed)
    waits = [error.retry_after for _, error in failed if error.retry_after is not None]
    raise CycleError(
        error.stage,
        error.reason,
        cleaned(text, MESSAGE_LIMIT),
        retryable=all(error.retryable for _, error in failed),
        retry_after=max(waits, default=None),
    ) from None
