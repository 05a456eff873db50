"""Records of the registry are read as they were written, with any rules."""

from __future__ import annotations

import pytest

from dsf.api.scorerule import Aggregate, EmptyItem, EmptyRule, FailingRule, HoldRule
from dsf.store.client import parse_stored
from dsf.store.registry import ScorerRecord


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"when_empty": EmptyRule(behavior="Value", value=5)},
        {"when_empty": EmptyRule(behavior="Value", items=[EmptyItem(name="a", value=1)])},
        {"when_failing": FailingRule(failure_threshold=2, behavior="Value", value=-100)},
        {"hold": HoldRule(min_change=5, for_seconds=60)},
        {"aggregate": Aggregate(by=("node", "pod"), how="mean"), "dimension_formats": ("${node}", "${pod}")},
    ],
)
def test_record_is_equal_after_writing_and_reading(rule: dict[str, object]) -> None:
    record = ScorerRecord.model_validate({"name": "s", "score_name": "score", "interval": 30, "validity": 300, **rule})
    assert parse_stored(ScorerRecord, "s", record.model_dump_json()) == record
