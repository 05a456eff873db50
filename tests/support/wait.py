"""Waiting for something to become true, without sleeping for luck."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")
#: A busy machine may take this many times as long as a test states. Only a test that fails waits for so long.
_PATIENCE = float(os.environ.get("DSF_TEST_PATIENCE", "6"))
#: Seconds, before they are multiplied: what takes a tenth of a second waits for a minute on a machine that is busy.
_LEAST = 10.0
#: Seconds for one step of what a test waits for without `wait_for`: a response, a process or thread that ends. A limit
#: on what is said to come soon is no shorter either: how fast something is, bench/ measures.
PATIENCE = _LEAST * _PATIENCE
#: Looks take no more than a third of the time, so that what is waited for has the processor; but one comes each quarter
#: of a second.
_REST, _LONGEST_REST = 2.0, 0.25


def wait_for(
    condition: Callable[[], _Value], timeout: float = 10.0, message: str = "", *, interval: float = 0.02
) -> _Value:
    """Poll `condition` until it returns something true, and return that; every `interval` seconds if that is cheap.

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
