from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dsf.api.cluster import ManagedCluster
from dsf.api.meta import Condition
from dsf.api.problems import HEAD_BYTES, Mistake, explain, format_field_path, quote_head
from dsf.api.scorer import DynamicScorer
from tests.unit.api.factories import manifest


@pytest.mark.parametrize(
    ("location", "path"),
    [((), ""), (("spec",), "spec"), (("spec", "masks", 0, "clusterName"), "spec.masks[0].clusterName"), ((2,), "[2]")],
)
def test_field_path(location: tuple[int | str, ...], path: str) -> None:
    assert format_field_path(location) == path


def test_problem_of_the_whole_document_names_no_field() -> None:
    assert str(Mistake((), "is wrong")) == "is wrong"
    assert str(Mistake(("a",), "is wrong")) == "a: is wrong"


def test_head_is_one_line_and_short() -> None:
    assert quote_head(b"a\n\xff") == r"'a\n" + "\ufffd'"
    assert quote_head(b"x" * HEAD_BYTES) == "'" + "x" * HEAD_BYTES + "'"
    assert quote_head(b"x" * (HEAD_BYTES + 1)) == "'" + "x" * HEAD_BYTES + "'..."


def test_long_value_is_truncated_in_the_message() -> None:
    document = manifest({"description": "d", "configURL": "http://h", "configSyncMode": "x" * 1000})
    with pytest.raises(ValidationError) as raised:
        DynamicScorer.from_manifest(document)
    (mistake,) = explain(raised.value, DynamicScorer, document)
    assert mistake.text == "'xxxxxxxxxxxx...xxxxxxxxxxxxx' is not one of Full, None"


CONDITION = {"type": "A", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"status": "true"}, "status: 'true' is not one of True, False, Unknown"),
        ({"reason": "with blank"}, "reason: 'with blank' does not match ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
        ({"reason": "R" * 1025}, "reason: is longer than 1024 characters"),
        ({"lastTransitionTime": "2026-01-01T00:00:00"}, "lastTransitionTime: '2026-01-01T00:00:00' has no time zone"),
    ],
)
def test_wording(change: dict[str, Any], text: str) -> None:
    document = {**CONDITION, **change}
    with pytest.raises(ValidationError) as raised:
        Condition.model_validate(document)
    assert [str(mistake) for mistake in explain(raised.value, Condition, document)] == [text]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"status": {"clusterClaims": {}}}, "status.clusterClaims: {} is not a list"),
        ({"metadata": {"name": "a", "labels": [1]}}, "metadata.labels: [1] is not a mapping of fields"),
        ({"metadata": {"name": "a", "labels": {"x": 1}}}, "metadata.labels.x: 1 is not text"),
        ({"metadata": {}}, "metadata.name: is required"),
    ],
)
def test_wording_of_mappings_and_lists(change: dict[str, Any], text: str) -> None:
    document = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", **change}
    document.setdefault("metadata", {"name": "a"})
    with pytest.raises(ValidationError) as raised:
        ManagedCluster.from_manifest(document)
    assert [str(mistake) for mistake in explain(raised.value, ManagedCluster, document)] == [text]
