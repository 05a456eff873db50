"""Records of the registry, as other versions of the hub write them."""

from __future__ import annotations

import pytest

from dsf.store.client import parsed
from dsf.store.registry import EmptyRule, ScorerRecord

WRITTEN = (
    '{"v":1,"name":"s","namespace":"hub","score_name":"s","description":"","dimension_format":"",'
    '"more_dimension_formats":[],"aggregate_with":"","aggregate_by":[],"destination":"AddOnPlacementScore",'
    '"location":"Internal","interval":30,"validity":300,"rate_limit":null,"exposition":"","suspended":false,'
    '"health":"Active","problem":"","when_failing":{"failure_threshold":3,"behavior":"Keep","value":null},'
    '"when_empty":%s,"hold":{"min_change":5,"for_seconds":0},"score_room":0}'
)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"behavior":"Empty","value":null,"items":[]}', EmptyRule()),
        ('{"behavior":"Value","value":5,"items":[]}', EmptyRule(behavior="Value", value=5)),
        ('{"behavior":"Value","value":null,"items":[["a",1]]}', EmptyRule(behavior="Value", items=(("a", 1),))),
    ],
)
def test_what_is_shown_without_results_keeps_its_form(text: str, rule: EmptyRule) -> None:
    """While a chart rolls, the hub and the writer are of two versions."""
    record = parsed(ScorerRecord, "s", WRITTEN % text)
    assert record is not None
    assert record.when_empty == rule
    assert record.model_dump_json() == WRITTEN % text
