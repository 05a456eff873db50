"""What viewers share is made once, and as new as it must be."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from dsf.web.site import Shared


def test_a_value_is_made_once_for_all_who_ask_meanwhile() -> None:
    shared: Shared[int] = Shared(60.0, 2)
    numbers, asked = count(), threading.Barrier(5)

    def get() -> int:
        asked.wait(30)
        return shared.get("a", lambda: next(numbers))

    with ThreadPoolExecutor(5) as pool:
        assert [one.result() for one in [pool.submit(get) for _ in range(5)]] == [0] * 5
    assert shared.get("a", lambda: next(numbers), is_new=True) == 1
    assert shared.get("a", lambda: next(numbers)) == 1


def test_an_error_is_not_kept() -> None:
    shared: Shared[int] = Shared(60.0, 2)

    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        shared.get("a", fail)
    assert shared.get("a", lambda: 3) == 3


def test_the_keys_that_were_asked_for_last_are_kept() -> None:
    shared: Shared[int] = Shared(60.0, 2)
    numbers = count()
    made = [shared.get(key, lambda: next(numbers)) for key in "abacab"]
    assert made == [0, 1, 0, 2, 0, 3]
