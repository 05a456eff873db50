"""Requests to the optimiser: the body of `POST /optimize` and the file of `dsf optimize -f`.

Unknown fields are refused, because a request with `dryrun` instead of `dryRun` must not apply a plan.
"""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import AliasChoices, ConfigDict, FailFast, Field, model_validator
from pydantic.alias_generators import to_camel

from dsf.api.meta import ApiModel
from dsf.api.naming import MAX_NAME_LENGTH, sanitize_resource_name
from dsf.errors import ManifestError
from dsf.optimizer.model import DEFAULT_DIMENSION_FORMAT, MAX_WEIGHT, Preference, raise_all

#: Names of Kubernetes objects, which become part of request paths.
_NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
#: Maximum clusters, and maximum workloads, of one request.
MAX_LISTED: Final = 10_000

Name = Annotated[str, Field(pattern=_NAME_PATTERN, max_length=MAX_NAME_LENGTH)]
#: Score name of a scorer, or the derived name of its AddOnPlacementScores.
ScoreName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]


class _Params(ApiModel):
    # Build models at their definition, because FastAPI suppresses warnings about parameter names only then.
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, defer_build=False)


class PolicyRef(_Params):
    """A Policy available for a cluster."""

    name: Name = Field(description="Name of the Policy in the plan's namespace.")


class ClusterParams(_Params):
    """A cluster, and the configurations to choose from."""

    name: Name = Field(description="Name of the ManagedCluster.")
    available_policies: Annotated[list[PolicyRef], FailFast()] = Field(
        description="The Policies of which at most one is bound to the cluster.", max_length=100
    )


class WorkloadRef(_Params):
    """A workload to place."""

    name: Name = Field(description="Name of the ManifestWorkReplicaSet in the plan's namespace.")


class PreferenceParams(_Params):
    """A score to maximize."""

    score: ScoreName = Field(
        validation_alias=AliasChoices("addOnPlacementScore", "addonPlacementScore"),
        serialization_alias="addOnPlacementScore",
        description="Name of the AddOnPlacementScore, or the scorer's score name (`my_score`). `addonPlacementScore` "
        "is an alias.",
    )
    score_dimension_format: str = Field(
        default=DEFAULT_DIMENSION_FORMAT,
        description="Name format of the score's items; it may contain ${app}, ${device}, ${cluster} and ${scoreName}.",
        max_length=1024,
    )
    weight: float = Field(
        default=1.0,
        description="Weight of the score in a mix. Below zero: less is better. At least one must be above zero.",
        ge=-MAX_WEIGHT,
        le=MAX_WEIGHT,
    )


class OptimizeParams(_Params):
    """A request for a plan."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "namespace": "default",
                    "clusters": [
                        {
                            "name": "cluster1",
                            "availablePolicies": [
                                {"name": "policy-disable-mig-cluster1"},
                                {"name": "policy-enable-mig-2g-cluster1"},
                                {"name": "policy-enable-mig-3g-cluster1"},
                            ],
                        }
                    ],
                    "targetWorkloads": [{"name": "mwrs-app01"}, {"name": "mwrs-app02"}],
                    "preference": {
                        "addOnPlacementScore": "example-performance-score",
                        "scoreDimensionFormat": "${app};${device}",
                    },
                    "dryRun": True,
                }
            ]
        }
    )

    namespace: Namespace = Field(description="Namespace of the workloads, the policies and the created objects.")
    # Stop at the first wrong element (FailFast), because errors of all elements would take far more memory than the
    # request.
    clusters: Annotated[list[ClusterParams], FailFast()] = Field(
        description="Clusters for the workloads.", max_length=MAX_LISTED
    )
    target_workloads: Annotated[list[WorkloadRef], FailFast()] = Field(
        description="Workloads to place.", max_length=MAX_LISTED
    )
    preference: PreferenceParams | None = Field(default=None, description="The one score to prefer; or `preferences`.")
    preferences: Annotated[list[PreferenceParams], FailFast()] = Field(
        default_factory=list, description="Several scores, each with its weight.", max_length=20
    )
    dry_run: bool = Field(default=False, description="Only return the plan; write nothing.", strict=True)
    plan_id: str | None = Field(
        default=None,
        description="The plan_id of an earlier dry run: the plan is applied only if it is still the same.",
        min_length=1,
        max_length=64,
    )
    keep_current: float = Field(
        default=0.0,
        description="Bonus, in units of score, for a workload that stays where the previous plan put it.",
        ge=0,
        le=MAX_WEIGHT,
    )
    time_limit: float | None = Field(
        default=None, description="Seconds to search; unset: the server's limit.", gt=0, le=600.0
    )
    gap: float = Field(
        default=0.0, description="Stop when the plan is proven to be within this fraction of the best.", ge=0, le=1
    )

    @model_validator(mode="after")
    def _check_single_preference(self) -> Self:
        if (self.preference is None) == (not self.preferences):
            raise ValueError("either preference or preferences is required")
        return self

    @model_validator(mode="after")
    def _check_positive_weight(self) -> Self:
        # Scores are mostly 0 to 100. Without a positive weight, every option would lower the sum, so that the plan
        # would remove all workloads.
        if all(preference.weight <= 0 for preference in self._list_preferences()):
            raise ValueError(
                "no weight is above zero, so that placing nothing would be best; mix it with a score to prefer, or let "
                "the scorer rate low use high"
            )
        return self

    def make_preferences(self) -> tuple[Preference, ...]:
        """Return the preferred scores. Raises ManifestError for an invalid weight or format."""
        errors: list[str] = []
        preferences: list[Preference] = []
        for preference in self._list_preferences():
            try:
                name = sanitize_resource_name(preference.score)
                score_name = preference.score if preference.score != name else ""
                preferences.append(Preference(name, preference.weight, preference.score_dimension_format, score_name))
            except ManifestError as error:
                errors.append(str(error))
        raise_all(errors)
        return tuple(preferences)

    def _list_preferences(self) -> list[PreferenceParams]:
        return [self.preference] if self.preference is not None else self.preferences


class ResetParams(_Params):
    """A request to remove a plan."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"namespace": "default"}]})

    namespace: Namespace = Field(description="Namespace of the plan.")
