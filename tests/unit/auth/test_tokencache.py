"""Cached tokens: the time limit of a renewal while the old token is valid, and eviction."""

from __future__ import annotations

import time

import pytest

from dsf.auth import tokencache
from dsf.auth.secrets import Token
from dsf.auth.tokencache import TokenCache
from dsf.errors import HttpError


@pytest.mark.parametrize("remaining_seconds", [4.0, 60.0])
def test_valid_token_is_renewed_within_part_of_the_deadline(
    monkeypatch: pytest.MonkeyPatch, remaining_seconds: float
) -> None:
    monkeypatch.setattr(tokencache, "_RENEWAL_SHARE", 0.0)
    cache = TokenCache()
    deadline = time.monotonic() + remaining_seconds
    deadlines: list[float] = []

    def get(until: float) -> Token:
        deadlines.append(until)
        if len(deadlines) > 1:
            raise HttpError("timeout", "too late")
        return Token("old", 50)

    assert [cache.get_token("key", get, deadline) for _ in range(2)] == ["old", "old"]
    assert deadlines[0] == deadline
    assert deadlines[1] < time.monotonic() + min(5.0, remaining_seconds / 2)
    # Without a valid token, the renewal may use the whole deadline.
    with pytest.raises(HttpError, match="too late"):
        cache.get_token("key", get, deadline, rejected_token="old")
    assert deadlines[2] == deadline


def test_full_token_cache_evicts_the_oldest() -> None:
    cache = TokenCache()
    renewed_numbers: list[int] = []

    def token(number: int) -> None:
        def get(_: float) -> Token:
            renewed_numbers.append(number)
            return Token("x", 3600)

        cache.get_token(number, get, time.monotonic() + 60)

    for number in range(257):
        token(number)
    renewed_numbers.clear()
    for number in (256, 255, 0):
        token(number)
    assert renewed_numbers == [0]


@pytest.mark.parametrize(("seconds", "fresh"), [(100.0, 80.0), (3600.0, 3540.0)])
def test_token_is_renewed_in_its_last_fifth_at_most_a_minute_early(
    monkeypatch: pytest.MonkeyPatch, seconds: float, fresh: float
) -> None:
    now = 1000.0
    monkeypatch.setattr(tokencache.time, "monotonic", lambda: now)
    cache, tokens = TokenCache(), iter(["first", "second"])

    def get(_: float) -> Token:
        return Token(next(tokens), seconds)

    assert cache.get_token("key", get, now + 10) == "first"
    now += fresh - 1
    assert cache.get_token("key", get, now + 10) == "first"
    now += 2
    assert cache.get_token("key", get, now + 10) == "second"
