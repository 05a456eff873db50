"""Label and claim selectors of Placements."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.errors import SettingsError
from dsf.optimizer.selector import PlacementSelector


def cluster(name: str, claims: dict[str, str] | None = None, **labels: str) -> dict[str, Any]:
    claim_list = [{"name": key, "value": value} for key, value in (claims or {}).items()]
    return {"metadata": {"name": name, "labels": labels}, "status": {"clusterClaims": claim_list}}


@pytest.mark.parametrize("text", ["", "name:x", "label", "label:", "claim:", "label:a b", "cel:x", "label:-x", "x:y"])
def test_invalid_selector_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"DSF_OPTIMIZER_CLUSTER_SELECTOR: .* is not allowed"):
        PlacementSelector.parse(text)


def test_selector_text_is_parsed() -> None:
    assert PlacementSelector.parse("name") == PlacementSelector("name")
    assert PlacementSelector.parse("claim:id.k8s.io").key == "id.k8s.io"
    label = PlacementSelector.parse("label:open-cluster-management.io/name")
    assert (label.by, label.labels) == ("label", "open-cluster-management.io/name")


def test_values_may_be_anything_unique() -> None:
    clusters = [cluster("a", zone="one"), cluster("b", zone="two"), cluster("c", zone="two"), cluster("d", zone="")]
    selector = PlacementSelector.parse("label:zone")
    assert selector.select(["a"], clusters).values == {"a": "one"}
    assert selector.select(["a"], clusters).problems == ()
    selection = selector.select(["a", "b", "d", "gone"], clusters)
    assert selection.values == {"a": "one", "b": "two", "d": "d", "gone": "gone"}
    assert [problem.split(",")[0] for problem in selection.problems] == [
        "label zone of ManagedCluster b is 'two'",
        "ManagedCluster d has no label zone",
        "ManagedCluster gone has no label zone",
    ]


def test_claim_selector_uses_cluster_claims() -> None:
    selector = PlacementSelector.parse("claim:id")
    selection = selector.select(["a", "b"], [cluster("a", {"id": "1"}), cluster("b", id="2")])
    assert selection.values == {"a": "1", "b": "b"}
    assert "ManagedCluster b has no claim id" in selection.problems[0]
    assert selector.make_predicate(["2", "1"], compliant=True) == {
        "claimSelector": {
            "matchExpressions": [
                {"key": "id", "operator": "In", "values": ["1", "2"]},
                {"key": "policy-watcher-claim", "operator": "In", "values": ["compliant"]},
            ]
        }
    }
