"""Rows of tables about pairs."""

from __future__ import annotations

import pytest

from dsf.fleet.pairviews import compute_age


@pytest.mark.parametrize(
    ("last_success", "age"),
    [(None, None), (990.0, 10.0), (1000.0, 0.0), (999.99949, 0.001), (1005.0, 0.0)],
    ids=["never", "before", "now", "rounded", "clock-ahead"],
)
def test_age_is_in_seconds_and_never_negative(last_success: float | None, age: float | None) -> None:
    assert compute_age(last_success, 1000.0) == age
