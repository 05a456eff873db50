"""Log lines that others can cause."""

from __future__ import annotations

from dsf.log import Throttle


def test_one_per_kind_and_how_many_were_left_out() -> None:
    throttle = Throttle(every=3600)
    assert throttle.take("a") == 0
    assert throttle.take("a") is None
    assert throttle.take("b") == 0
    always = Throttle(every=0)
    assert [always.take("a"), always.take("a")] == [0, 0]


def test_the_next_line_says_how_many_are_missing(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("dsf.log.time.monotonic", lambda: now[0])
    throttle = Throttle(every=1)
    assert [throttle.take("a") for _ in range(4)] == [0, None, None, None]
    now[0] += 1
    assert throttle.take("a") == 3
