"""Responses of the optimiser: over HTTP, to assistants, and with `dsf optimize -o json`.

Names are in snake_case, like `objective_value` and `output_yaml`, which other programs read.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dsf.api.meta import Time


class Status(StrEnum):
    """Quality of a plan."""

    #: No other plan has a greater sum of scores.
    OPTIMAL = "Optimal"
    #: A good plan. `gap` bounds its distance to the best plan.
    FEASIBLE = "Feasible"


class Coverage(StrEnum):
    """Placed fraction of the workloads; a plan that places nothing can be the best one."""

    ALL_PLACED = "AllPlaced"
    #: `unplaced` has the other workloads, with the reasons.
    PART_PLACED = "PartPlaced"
    #: `unplaced` has all workloads, with the reasons.
    NOTHING_PLACED = "NothingPlaced"
    #: The request has no workloads.
    NOTHING_TO_PLACE = "NothingToPlace"


class Reason(StrEnum):
    """Reason why an option was not chosen."""

    NO_CONFIGURATION = "no_configuration"
    NO_SCORE = "no_score"
    EXPIRED = "expired"
    TOO_LARGE = "too_large"
    NEGATIVE = "negative_score"
    #: The cluster has another configuration.
    CONFIGURATION = "configuration_conflict"
    #: Other workloads use the resources that it needs.
    CAPACITY = "capacity"
    #: The chosen option scores more.
    LOWER_SCORE = "lower_score"
    #: The chosen option has the same score and is the current place, comes first by name, or helps another workload.
    TIE = "tie"
    #: The gain of moving is less than `keep_current`.
    KEPT = "kept"
    #: The search ended before this could be tried.
    NOT_PROVEN = "not_proven"


class OptimizerView(BaseModel):
    """Base of all views, which are immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AssignmentView(OptimizerView):
    """Replicas of a workload on one cluster."""

    workload: str
    cluster: str
    policy: str
    device: str
    score: float = Field(description="Score of one replica.")
    replicas: int = Field(ge=1)
    kept: int = Field(ge=0, description="Number of these replicas that the previous plan placed there, too.")


class ConfigurationView(OptimizerView):
    """The Policy of a cluster. A cluster without workloads gets none."""

    cluster: str
    policy: str
    device: str
    supply: dict[str, int] = Field(description="Amount by resource kind.")
    used: dict[str, int]


class PlanView(OptimizerView):
    """Places of workloads, and configurations of clusters."""

    assignments: list[AssignmentView] = []
    configurations: list[ConfigurationView] = []


class UnplacedView(OptimizerView):
    """Unplaced replicas of a workload, with the reason."""

    workload: str
    replicas: int
    reason: Reason
    message: str


class OptionView(OptimizerView):
    """One option of a workload."""

    cluster: str
    device: str
    score: float


class ExplanationView(OptimizerView):
    """Why a workload is at its place and not at its next best option, which is None if no other option has a score."""

    workload: str
    chosen: list[OptionView] = []
    next_best: OptionView | None = None
    reason: Reason
    message: str
    options_without_score: int = 0
    options_with_expired_score: int = 0


class ScoreGapView(OptimizerView):
    """Scores of one cluster that the search could not use, with the reason."""

    cluster: str
    score: str
    reason: Reason
    message: str


class ChangeView(OptimizerView):
    """A change of one object, or with a dry run the planned change."""

    kind: str
    namespace: str
    name: str
    change: Literal["created", "updated", "unchanged", "deleted"]


class PlanReport(OptimizerView):
    """Response of /optimize."""

    status: Status = Field(description="Optimal: no better plan exists. Feasible: a good one, see gap.")
    coverage: Coverage = Field(description="Placed workloads: AllPlaced, PartPlaced, NothingPlaced; NothingToPlace.")
    objective_value: float = Field(description="Sum of the scores of all placed replicas.")
    output_yaml: str = Field(description="The objects of the plan.")
    plan: PlanView
    unplaced: list[UnplacedView] = []
    gap: float = Field(description="Upper bound of the distance to the best plan, as a fraction; 0 for the best plan.")
    bound: float = Field(description="Upper bound of all plans, including the bonus for staying.")
    explanation: list[ExplanationView] = []
    missing_scores: list[ScoreGapView] = []
    warnings: list[str] = Field(default=[], description="Reasons why the plan may not take effect.")
    plan_id: str = Field(description="Id of the plan: equal plans have equal ids.")
    namespace: str
    applied: bool = Field(description="Whether the plan is in force now; false after a dry run.")
    changes: list[ChangeView] = []
    seconds: float = Field(description="Duration of the search.")


class AppliedPlan(OptimizerView):
    """A plan that is in force in a namespace, read from its objects."""

    namespace: str
    plan_id: str
    complete: bool = Field(description="Whether exactly the objects of the plan exist.")
    applied_at: Time | None = None
    plan: PlanView
    objects: list[str] = Field(description="Kind and name of each object.")


class PlanList(OptimizerView):
    """Response of /plans."""

    items: list[AppliedPlan] = []


class ResetReport(OptimizerView):
    """Response of /reset."""

    namespace: str
    deleted: list[ChangeView] = []
    dry_run: bool = Field(default=False, description="Dry run: nothing was deleted.")


class Freshness(OptimizerView):
    """Age and expiry of a score."""

    updated_at: Time | None = Field(default=None, description="Time at which the score was last written.")
    valid_until: Time | None = Field(
        default=None, description="Time at which the score expires; null if it never expires."
    )
    expired: bool
    seconds_left: float | None = Field(default=None, description="Seconds until it expires; negative afterwards.")


class ScoreObject(OptimizerView):
    """An AddOnPlacementScore with the meaning of its items as annotations."""

    apiVersion: str  # noqa: N815  # as the object has it
    kind: str
    metadata: dict[str, Any]
    status: dict[str, Any]
    freshness: Freshness


class ScoreList(OptimizerView):
    """Response of /addonplacementscores."""

    items: list[ScoreObject] = []


class ConditionView(OptimizerView):
    """A condition of a DynamicScorer."""

    type: str
    status: str
    reason: str
    message: str


class ClusterScoreView(OptimizerView):
    """A scorer's score of one cluster."""

    cluster: str
    items: int
    lowest: int | None = None
    highest: int | None = None
    freshness: Freshness


class ScorerView(OptimizerView):
    """A scorer with its state and scores."""

    name: str
    namespace: str
    description: str
    config_url: str
    score_name: str = Field(description="Resolved score name; empty if it cannot be resolved.")
    score_object: str = Field(description="Name of its AddOnPlacementScores, for a preference.")
    score_dimension_format: str
    interval_seconds: int
    health: str
    conditions: list[ConditionView] = []
    failures: list[str] = Field(default=[], description="The newest failed cycles, newest first.")
    scores: list[ClusterScoreView] = []


class RescoreRun(OptimizerView):
    """One requested cycle."""

    cluster: str
    run_id: str = Field(description="Id of the run; empty if the cycle was not sent.")
    message: str = ""


class RescoreReport(OptimizerView):
    """Result of a request to score now."""

    scorer: str
    runs: list[RescoreRun] = []


class ProblemView(OptimizerView):
    """Problem details of an error (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
