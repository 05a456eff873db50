"""Two programs that change one object: how often the hub undoes the other one's changes."""

from __future__ import annotations

from dsf.backends.contest import IMMEDIATE_REPAIRS, MAX_WAIT_SECONDS, WriteContests

CONTENT = {"metadata": {"labels": {"a": "b"}}}


def writes_within(seconds: float, contests: WriteContests, now: list[float], key: str = "a") -> int:
    """How often the content is written while somebody changes it ten times a second."""
    count, end = 0, now[0] + seconds
    while now[0] < end:
        if not contests.compute_wait(key, CONTENT):
            contests.record_write(key, CONTENT)
            count += 1
        now[0] += 0.1
    return count


def test_changes_that_are_repeated_are_undone_ever_more_rarely() -> None:
    now = [1000.0]
    contests = WriteContests(lambda: now[0])
    assert writes_within(1.0, contests, now) == 1 + IMMEDIATE_REPAIRS
    assert writes_within(120.0, contests, now) <= 6
    assert writes_within(600.0, contests, now) <= 600 / MAX_WAIT_SECONDS + 1
    assert writes_within(1.0, contests, now, "another") == 1 + IMMEDIATE_REPAIRS


def test_other_content_is_written_at_once() -> None:
    now = [1000.0]
    contests = WriteContests(lambda: now[0])
    writes_within(60.0, contests, now)
    assert contests.compute_wait("a", CONTENT) > 0
    assert contests.compute_wait("a", {"metadata": {}}) == 0
    contests.record_write("a", {"metadata": {}})
    assert contests.compute_wait("a", CONTENT) == 0


def test_rare_changes_are_undone_at_once() -> None:
    now = [1000.0]
    contests = WriteContests(lambda: now[0])
    for _ in range(20):
        assert contests.compute_wait("a", CONTENT) == 0
        contests.record_write("a", CONTENT)
        now[0] += 2 * MAX_WAIT_SECONDS + 1
