from __future__ import annotations

from typing import Any

from dsf.api.scoringconfig import DynamicScoringConfig


def config(spec: dict[str, Any]) -> DynamicScoringConfig:
    return DynamicScoringConfig.from_manifest(
        {
            "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
            "kind": "DynamicScoringConfig",
            "metadata": {"name": "dynamic-scoring-config", "namespace": "hub"},
            "spec": spec,
        }
    )


def test_config_without_masks_has_an_empty_list() -> None:
    scoring_config = config({"masks": None})
    assert scoring_config.spec.all_masks == []
    assert scoring_config.key == "hub/dynamic-scoring-config"
