"""Waits until a condition is true, instead of sleeping."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")
#: Factor for all limits of tests, because the machine may be busy. Only a failing test waits for so long.
_PATIENCE = float(os.environ.get("DSF_TEST_PATIENCE", "6"))
#: Minimum seconds before the factor: on a busy machine, a tenth of a second may become a minute.
_LEAST = 10.0
#: Seconds for a step without `wait_for`, such as a response or the end of a process. Limits on short waits are no
#: shorter, because tests check that something happens; bench/ measures how fast.
PATIENCE = _LEAST * _PATIENCE
#: Polls take at most a third of the time, so that the observed process gets the processor, but at least one runs each
#: quarter of a second.
_REST, _LONGEST_REST = 2.0, 0.25


def wait_for(
    condition: Callable[[], _Value], timeout: float = 10.0, message: str = "", *, interval: float = 0.02
) -> _Value:
    """Poll `condition` until it returns a true value, and return that; every `interval` seconds if the poll is cheap.

    An AssertionError inside the condition counts as "not yet"; its text is part of the final message. Any other error
    passes through at once. Raises AssertionError after DSF_TEST_PATIENCE (6) times `timeout` seconds, which counts as
    at least ten, so after a minute or more; says what was seen last. The last look begins when the time is over.
    """
    seconds = max(timeout, _LEAST) * _PATIENCE
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        is_last = began >= deadline
        last_result: object
        try:
            value = condition()
        except AssertionError as error:
            last_result = error
        else:
            if value:
                return value
            last_result = value
        if is_last:
            expectation = message or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"not within {seconds:g} s: {expectation}; last seen: {last_result!r}")
        time.sleep(max(interval, min(_REST * (time.monotonic() - began), _LONGEST_REST)))
