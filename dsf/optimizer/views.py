"""What the optimiser answers: over HTTP, to assistants, and with `dsf optimize -o json`.

Names are in snake_case, because `objective_value` and `output_yaml`, which other programs read, are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dsf.api.meta import Time


class Status(StrEnum):
    """What is known about a plan."""

    #: No other plan has a greater sum.
    OPTIMAL = "Optimal"
    #: A good plan; `gap` says how far from the best one it can be at most.
    FEASIBLE = "Feasible"


class Coverage(StrEnum):
    """How much of what was to be placed is placed; a plan that places nothing can be the best one."""

    ALL_PLACED = "AllPlaced"
    #: `unplaced` has the rest, with the reasons; likewise of the next one.
    PART_PLACED = "PartPlaced"
    NOTHING_PLACED = "NothingPlaced"
    #: There are no workloads.
    NOTHING_TO_PLACE = "NothingToPlace"


class Reason(StrEnum):
    """Why an option was not taken."""

    NO_CONFIGURATION = "no_configuration"
    NO_SCORE = "no_score"
    EXPIRED = "expired"
    TOO_LARGE = "too_large"
    NEGATIVE = "negative_score"
    #: The cluster has another configuration.
    CONFIGURATION = "configuration_conflict"
    #: Others take what it would need.
    CAPACITY = "capacity"
    #: What was chosen instead scores more.
    LOWER_SCORE = "lower_score"
    #: What was chosen scores the same and is where the workload is now, or comes first by name, or helps another.
    TIE = "tie"
    #: Moving is not worth what `keep_current` says it costs.
    KEPT = "kept"
    #: The search ended before this could be tried.
    NOT_PROVEN = "not_proven"


class View(BaseModel):
    """Base of the answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class AssignmentView(View):
    """Replicas of a workload that go to one cluster."""

    workload: str
    cluster: str
    policy: str
    device: str
    score: float = Field(description="Of one replica.")
    replicas: int
    kept: int = Field(description="How many of them were planned there before.")


class ConfigurationView(View):
    """The Policy that a cluster is given. A cluster that gets no workload is given none."""

    cluster: str
    policy: str
    device: str
    supply: dict[str, int] = Field(description="Amount by resource kind.")
    used: dict[str, int]


class PlanView(View):
    """Which workload goes where, and how clusters are set up for it."""

    assignments: list[AssignmentView] = []
    configurations: list[ConfigurationView] = []


class UnplacedView(View):
    """Replicas of a workload that go nowhere, and why."""

    workload: str
    replicas: int
    reason: Reason
    message: str


class OptionView(View):
    """One option of a workload."""

    cluster: str
    device: str
    score: float


class ExplanationView(View):
    """Why a workload is where it is, and why not at the next best option; None when no other option has a score."""

    workload: str
    chosen: list[OptionView] = []
    next_best: OptionView | None = None
    reason: Reason
    message: str
    options_without_score: int = 0
    options_with_expired_score: int = 0


class ScoreGapView(View):
    """Scores that could not be used."""

    cluster: str
    score: str
    reason: Reason
    message: str


class ChangeView(View):
    """What was done, or with a dry run would be done, to one object."""

    kind: str
    namespace: str
    name: str
    change: Literal["created", "updated", "unchanged", "deleted"]


class PlanReport(View):
    """Answer of /optimize."""

    status: Status = Field(description="Optimal: no better plan exists. Feasible: a good one, see gap.")
    coverage: Coverage = Field(
        description="What of the workloads is placed: AllPlaced, PartPlaced, NothingPlaced; NothingToPlace."
    )
    objective_value: float = Field(description="Sum of the scores of all that is placed.")
    output_yaml: str = Field(description="The objects of the plan.")
    plan: PlanView
    unplaced: list[UnplacedView] = []
    gap: float = Field(description="How far below the best one the plan can be at most, as a share; 0: it is the best.")
    bound: float = Field(description="No plan is worth more than this; it includes what staying is worth.")
    explanation: list[ExplanationView] = []
    missing_scores: list[ScoreGapView] = []
    warnings: list[str] = Field(default=[], description="What may keep the plan from taking effect.")
    plan_id: str = Field(description="Names what the plan says: equal plans have equal ids.")
    namespace: str
    applied: bool = Field(description="Whether the plan is in force now; false after a dry run.")
    changes: list[ChangeView] = []
    seconds: float = Field(description="How long the search took.")


class AppliedPlan(View):
    """A plan that is in force in a namespace, read from its objects."""

    namespace: str
    plan_id: str
    complete: bool = Field(description="Whether all of its objects are there, and no others.")
    applied_at: Time | None = None
    plan: PlanView
    objects: list[str] = Field(description="Kind and name of each.")


class PlanList(View):
    """Answer of /plans."""

    items: list[AppliedPlan] = []


class ResetReport(View):
    """Answer of /reset."""

    namespace: str
    deleted: list[ChangeView] = []
    dry_run: bool = Field(default=False, description="Nothing was deleted: this is what would be.")


class Freshness(View):
    """How old a score is."""

    updated_at: Time | None = Field(default=None, description="When its value was last written.")
    valid_until: Time | None = Field(default=None, description="Null: it never expires.")
    expired: bool
    seconds_left: float | None = Field(default=None, description="Until it expires; below zero afterwards.")


class ScoreObject(View):
    """An AddOnPlacementScore with what its items mean, as annotations."""

    apiVersion: str  # noqa: N815  # as the object has it
    kind: str
    metadata: dict[str, Any]
    status: dict[str, Any]
    freshness: Freshness


class ScoreList(View):
    """Answer of /addonplacementscores."""

    items: list[ScoreObject] = []


class ConditionView(View):
    """A condition of a DynamicScorer."""

    type: str
    status: str
    reason: str
    message: str


class ClusterScoreView(View):
    """A scorer's score of one cluster."""

    cluster: str
    items: int
    lowest: int | None = None
    highest: int | None = None
    freshness: Freshness


class ScorerView(View):
    """What a scorer is, whether it works, and where its scores are."""

    name: str
    namespace: str
    description: str
    config_url: str
    score_name: str = Field(description="As it was resolved; empty while it is not.")
    score_object: str = Field(description="Name of its AddOnPlacementScores: what a preference names.")
    score_dimension_format: str
    interval_seconds: int
    health: str
    conditions: list[ConditionView] = []
    failures: list[str] = Field(default=[], description="The newest failed cycles, newest first.")
    scores: list[ClusterScoreView] = []


class RescoreRun(View):
    """One cycle that was asked for."""

    cluster: str
    run_id: str = Field(description="Empty when it was not sent.")
    message: str = ""


class RescoreReport(View):
    """What became of a wish to score now."""

    scorer: str
    runs: list[RescoreRun] = []


class ProblemView(View):
    """An error as RFC 9457 has it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
