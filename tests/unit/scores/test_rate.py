"""The rate of the hub's writes."""

from __future__ import annotations

import pytest

from dsf.scores.rate import BURST, WriteRate


def test_writes_are_paced_after_a_burst() -> None:
    now = [100.0]
    rate = WriteRate(2.0, lambda: now[0])
    assert [rate.take() for _ in range(BURST)] == [0.0] * BURST
    assert rate.take() == pytest.approx(0.5)
    now[0] += 0.5
    assert rate.take() == 0.0
    assert rate.take() == pytest.approx(0.5)
    now[0] += 3600
    assert [rate.take() for _ in range(BURST)] == [0.0] * BURST
    assert rate.take() > 0
