from __future__ import annotations

from typing import Any

import pytest

from dsf.api.scoringconfig import DynamicScoringConfig, Mask, is_masked
from tests.cases import load


def config(spec: dict[str, Any]) -> DynamicScoringConfig:
    return DynamicScoringConfig.from_manifest(
        {
            "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
            "kind": "DynamicScoringConfig",
            "metadata": {"name": "dynamic-scoring-config", "namespace": "hub"},
            "spec": spec,
        }
    )


# That `*` means any is this project's own.
@pytest.mark.parametrize("case", load("masks"))
def test_is_masked(case: dict[str, Any]) -> None:
    masks = [Mask(cluster_name=cluster, score_name=score) for cluster, score in case["masks"]]
    assert is_masked(masks, case["cluster"], case["score"]) is case["expected"]


def test_a_config_without_masks() -> None:
    found = config({"masks": None})
    assert found.spec.all_masks == []
    assert found.key == "hub/dynamic-scoring-config"
