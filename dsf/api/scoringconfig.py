"""`DynamicScoringConfig`: masks of scores by cluster."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import ConfigDict, Field, StrictInt

from dsf.api.meta import ApiModel, Condition, KubernetesObject, Rule, SpecModel, StatusModel
from dsf.api.selector import ClusterSelector
from dsf.api.types import API_VERSION, CONFIG_KIND

#: Wildcard of a mask: any cluster, or any score.
ANY: Final = "*"


class Mask(SpecModel):
    """Excludes one score from one cluster, or those of a selector."""

    rules = (
        Rule(
            "either clusterName or clusterSelector",
            "has(self.clusterName) != has(self.clusterSelector)",
            lambda self: (self.cluster_name is None) != (self.cluster_selector is None),
        ),
    )

    cluster_name: str | None = Field(
        default=None, description="Name of the managed cluster, or * for any.", min_length=1
    )
    cluster_selector: ClusterSelector | None = Field(default=None, description="Managed clusters by their labels.")
    score_name: str = Field(description="Name of the score as its scorer writes it, or * for any.", min_length=1)


class DynamicScoringConfigSpec(ApiModel):
    """The user's configuration of scoring on all clusters."""

    model_config = ConfigDict(frozen=True)

    masks: list[Mask] = Field(default_factory=list, description="Scores that are excluded on some clusters.")
    mask: list[Mask] = Field(default_factory=list, description="The older spelling of masks; both count.")

    @property
    def all_masks(self) -> list[Mask]:
        """The masks of both spellings."""
        return [*self.masks, *self.mask]


class DynamicScoringConfigStatus(StatusModel):
    """State of the DynamicScoringConfig, which the hub writes."""

    observed_generation: StrictInt = Field(default=0, description="The generation this status was made for.", ge=0)
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Whether this object is in force and distributed.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    clusters: StrictInt = Field(default=0, description="Managed clusters with scorers.", ge=0)
    scorers: StrictInt = Field(default=0, description="Scorers that run on at least one cluster.", ge=0)
    masked: StrictInt = Field(default=0, description="Pairs of cluster and scorer that the masks exclude.", ge=0)


class DynamicScoringConfig(KubernetesObject):
    """The fleet-wide configuration; only the object `dynamic-scoring-config` in the hub's namespace counts."""

    api_version: Literal["dynamic-scoring.open-cluster-management.io/v1alpha1"] = API_VERSION
    kind: Literal["DynamicScoringConfig"] = CONFIG_KIND
    spec: DynamicScoringConfigSpec = Field(default_factory=DynamicScoringConfigSpec)
    status: DynamicScoringConfigStatus = Field(default_factory=DynamicScoringConfigStatus)
