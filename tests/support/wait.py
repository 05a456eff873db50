"""Waiting for something to become true, without sleeping for luck."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")


def wait_for(
    condition: Callable[[], _Value], timeout: float = 10.0, message: str = "", *, interval: float = 0.02
) -> _Value:
    """Poll `condition` until it returns something true, and return that.

    An AssertionError inside the condition counts as "not yet"; its text is part of the final message. Any other error
    passes through at once. Raises AssertionError after `timeout` seconds, saying what was seen last.
    """
    deadline = time.monotonic() + timeout
    while True:
        seen: object
        try:
            value = condition()
        except AssertionError as error:
            seen = error
        else:
            if value:
                return value
            seen = value
        if time.monotonic() >= deadline:
            what = message or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"not within {timeout:g} s: {what}; last seen: {seen!r}")
        time.sleep(interval)
