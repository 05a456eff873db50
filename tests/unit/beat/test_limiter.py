"""The fleet-wide rate limit: never above the rate, and fair to all clusters."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsf.beat.limiter import TICKET_LIFE_SECONDS, RateLimiter
from dsf.store.entries import compute_next_tick_time

START = 1_795_000_000.0


def simulate(pairs: int, interval: int, rate: str, seconds: float) -> tuple[Counter[str], Counter[str], list[float]]:
    """Simulate beat with one limited scorer; return (runs, skips, moments of runs)."""
    limiter = RateLimiter()
    runs: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    moments = []
    due = [(compute_next_tick_time(f"c{n}/s", interval, START), f"c{n}/s") for n in range(pairs)]
    heapq.heapify(due)
    while due[0][0] < START + seconds:
        now, pair = heapq.heappop(due)
        slot = compute_next_tick_time(pair, interval, now)
        moment = limiter.reserve_time("s", pair, rate, now)
        if moment <= now:
            limiter.use_ticket("s", pair, slot)
            runs[pair] += 1
            moments.append(now)
            heapq.heappush(due, (slot, pair))
        elif moment < slot:
            heapq.heappush(due, (moment, pair))
        else:
            skips[pair] += 1
            heapq.heappush(due, (slot, pair))
    return runs, skips, moments


@settings(max_examples=60)
@given(st.integers(2, 40), st.integers(2, 20), st.sampled_from(["1/s", "30/m", "2/s", "100/m"]))
def test_pairs_share_the_rate_fairly(pairs: int, interval: int, rate: str) -> None:
    runs, skips, _ = simulate(pairs, interval, rate, 2000)
    counts = [runs[f"c{n}/s"] for n in range(pairs)]
    assert max(counts) - min(counts) <= 2, (counts, skips)


def test_two_pairs_for_one_token_take_turns() -> None:
    runs, skips, _ = simulate(2, 30, "2/m", 6000)
    assert sum(runs.values()) == pytest.approx(200, abs=2)
    assert abs(runs["c0/s"] - runs["c1/s"]) <= 1
    assert abs(skips["c0/s"] - skips["c1/s"]) <= 1


def test_rate_is_fully_used_and_never_exceeded() -> None:
    _, _, moments = simulate(50, 10, "2/s", 500)
    assert all(later - earlier >= 0.4999 for earlier, later in itertools.pairwise(moments))
    assert len(moments) == pytest.approx(1000, abs=5)


def test_no_tick_is_skipped_below_the_limit() -> None:
    runs, skips, _ = simulate(10, 30, "1/s", 3000)
    assert not skips
    assert set(runs.values()) <= {99, 100}


def test_ticket_is_kept_until_used() -> None:
    limiter = RateLimiter()
    assert limiter.reserve_time("s", "a/s", "1/s", START) == START
    assert limiter.reserve_time("s", "b/s", "1/s", START) == START + 1
    assert limiter.has_ticket("s", "b/s")
    assert limiter.reserve_time("s", "b/s", "1/s", START + 0.5) == START + 1
    limiter.use_ticket("s", "b/s", START + 30)
    assert not limiter.has_ticket("s", "b/s")
    assert limiter.reserve_time("s", "b/s", "1/s", START + 1) == START + 2


def test_after_a_standstill_waiting_tickets_do_not_burst() -> None:
    limiter = RateLimiter()
    for number in range(100):
        limiter.reserve_time("s", f"c{number}/s", "1/s", START)
    later = START + 1000
    moments = sorted(limiter.reserve_time("s", f"c{number}/s", "1/s", later) for number in range(100))
    assert moments == [later + number for number in range(100)]


def test_new_rate_applies_at_once() -> None:
    limiter = RateLimiter()
    for number in range(10):
        limiter.reserve_time("s", f"c{number}/s", "1/h", START)
    assert limiter.reserve_time("s", "c9/s", "10/s", START) == START


def test_scorers_do_not_share_a_limit() -> None:
    limiter = RateLimiter()
    assert (
        limiter.reserve_time("one", "a/one", "1/m", START)
        == limiter.reserve_time("two", "a/two", "1/m", START)
        == START
    )


def test_tickets_of_removed_pairs_are_deleted() -> None:
    limiter = RateLimiter()
    limiter.reserve_time("s", "a/s", "1/s", START)
    limiter.remove_expired_tickets(START + TICKET_LIFE_SECONDS)
    assert limiter.has_ticket("s", "a/s")
    limiter.remove_expired_tickets(START + TICKET_LIFE_SECONDS + 1)
    assert not limiter.has_ticket("s", "a/s")


def test_unreadable_rate_does_not_limit() -> None:
    limiter = RateLimiter()
    assert [limiter.reserve_time("s", f"c{n}/s", "many", START) for n in range(3)] == [START] * 3
