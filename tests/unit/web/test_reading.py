"""Why a pair has no score, in the words of its page."""

from __future__ import annotations

import pytest

from dsf.fleet.overviews import PairRow
from dsf.store.registry import ScorerRecord
from dsf.web.reading import _why
from dsf.web.states import STATES


@pytest.mark.parametrize(
    ("health", "problem", "expected"),
    [
        ("Inactive", "Timeout: no complete answer in time", ("Timeout", "no complete answer in time")),
        ("Active", "", ("paused", STATES["paused"].help)),
        ("Active", "SomethingElse: not about health", ("paused", STATES["paused"].help)),
    ],
)
def test_the_cause_of_a_pause_comes_first(health: str, problem: str, expected: tuple[str, str]) -> None:
    record = ScorerRecord.model_validate(
        {"name": "s", "score_name": "s", "interval": 30, "validity": 300, "health": health, "problem": problem}
    )
    row = PairRow.model_construct(remark=None, failure=None, skips=None)
    why = _why(STATES["paused"], row, record, None)
    assert why is not None
    assert (why.reason, why.message) == expected
