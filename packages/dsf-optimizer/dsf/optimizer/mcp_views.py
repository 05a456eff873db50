"""Responses of the tools: the service's views, shortened for an assistant.

Omitted entries are counted, and the response says how to request them.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from dsf.optimizer.scores import DESCRIPTION, DIMENSION_FORMAT
from dsf.optimizer.views import (
    AppliedPlan,
    AssignmentView,
    ChangeView,
    ConfigurationView,
    Coverage,
    Freshness,
    OptimizerView,
    OptionView,
    PlanList,
    PlanReport,
    PlanView,
    ResetReport,
    ScoreGapView,
    ScoreObject,
    ScorerView,
    Status,
    UnplacedView,
)

#: Maximum objects of one kind in a response.
MAX_LISTED: Final = 100


class ScoreBrief(OptimizerView):
    """One AddOnPlacementScore of one cluster."""

    cluster: str
    score: str = Field(description="The name for a preference.")
    meaning: str = Field(description="What the numbers measure, as described by the scorer's author.")
    item_names: str = Field(description="Name format of the items; the scoreDimensionFormat of a preference.")
    freshness: Freshness
    items: dict[str, int] = Field(description="Highest first. From -100 to 100.")
    more_items: int = Field(description="Number of omitted lower ones; raise maxItems to get more.")


class ScoresResponse(OptimizerView):
    """Response of list_scores."""

    scores: list[ScoreBrief]
    left_out: int = Field(description="Number of omitted ones; ask for one cluster or one score to see them.")


class ScorerResponse(ScorerView):
    """Response of explain_scorer."""

    clusters: int = Field(description="Number of clusters with scores.")
    expired: int = Field(description="Number of clusters with expired scores, which come first in scores.")


class PlanInForce(AppliedPlan):
    """One plan in a response of list_plans."""

    left_out: dict[str, int] = Field(
        description="Number of omitted entries of its lists; ask for its namespace alone to see more, or "
        "GET /plans?namespace= of the HTTP API for all."
    )


class PlansResponse(OptimizerView):
    """Response of list_plans."""

    items: list[PlanInForce]
    left_out: int = Field(description="Number of omitted plans; ask for their namespaces one by one to see them.")


class ResetResponse(ResetReport):
    """Response of the tool reset."""

    left_out: int = Field(
        description="Number of omitted objects, which are deleted, too; before a reset, GET /plans?namespace= of the "
        "HTTP API lists all."
    )


class PlacedWorkload(AssignmentView):
    """Replicas of a workload on one cluster, with the reason."""

    next_best: OptionView | None = Field(description="The best option that was not taken.")
    why_not: str = Field(description="Reason why this option was not chosen.")


class PlanResponse(OptimizerView):
    """Response of propose_plan and apply_plan."""

    next_step: str = Field(description="How to proceed.")
    namespace: str
    plan_id: str
    applied: bool
    status: Status = Field(description="Optimal: no better plan exists. Feasible: a good one, see gap.")
    coverage: Coverage = Field(description="Placed workloads: AllPlaced, PartPlaced, NothingPlaced; NothingToPlace.")
    objective_value: float = Field(description="Sum of the scores of all placed replicas.")
    gap: float = Field(description="Largest distance to the best plan, as a fraction; 0: it is the best.")
    warnings: list[str] = Field(description="Reasons why the plan may not take effect.")
    workloads: list[PlacedWorkload]
    policies: list[ConfigurationView] = Field(description="Configurations of the clusters.")
    unplaced: list[UnplacedView] = Field(description="Unplaced workloads, with reasons.")
    missing_scores: list[ScoreGapView]
    changes: list[ChangeView] = Field(
        description="Written objects, or those that a proposal would write; without unchanged ones."
    )
    left_out: dict[str, int] = Field(description="Number of omitted entries of the lists above.")
    output_yaml: str | None = Field(description="The objects of the plan, with includeYaml.")


def make_score_brief(score: ScoreObject, max_items: int) -> ScoreBrief:
    """Return one score with its highest items."""
    annotations: dict[str, Any] = score.metadata["annotations"]
    values = [(str(item["name"]), int(item["value"])) for item in score.status.get("scores") or ()]
    values.sort(key=lambda item: (-item[1], item[0]))
    return ScoreBrief(
        cluster=score.metadata["namespace"],
        score=score.metadata["name"],
        meaning=annotations.get(DESCRIPTION, ""),
        item_names=annotations.get(DIMENSION_FORMAT, ""),
        freshness=score.freshness,
        items=dict(values[:max_items]),
        more_items=max(0, len(values) - max_items),
    )


def make_scorer_response(view: ScorerView) -> ScorerResponse:
    """Return a scorer. Scores that need attention come first."""
    scores = sorted(view.scores, key=lambda score: (not score.freshness.expired, score.cluster))
    fields = dict(view) | {"scores": scores[:MAX_LISTED]}
    expired_count = sum(score.freshness.expired for score in scores)
    return ScorerResponse(**fields, clusters=len(scores), expired=expired_count)


def make_plans_response(plans: PlanList) -> PlansResponse:
    """Return the plans in force, with fewer entries per plan the more plans there are."""
    items = plans.items[:MAX_LISTED]
    max_entries = MAX_LISTED // max(1, len(items))
    return PlansResponse(
        items=[_make_plan(plan, max_entries) for plan in items], left_out=len(plans.items) - len(items)
    )


def _make_plan(plan: AppliedPlan, max_entries: int) -> PlanInForce:
    lists: dict[str, list[Any]] = {**dict(plan.plan), "objects": plan.objects}
    limited_lists = {name: items[:max_entries] for name, items in lists.items()}
    fields = dict(plan) | {"objects": limited_lists.pop("objects"), "plan": PlanView(**limited_lists)}
    return PlanInForce(
        **fields, left_out={name: len(items) - max_entries for name, items in lists.items() if len(items) > max_entries}
    )


def make_reset_response(report: ResetReport) -> ResetResponse:
    """Return a report with the first deleted objects."""
    fields = dict(report) | {"deleted": report.deleted[:MAX_LISTED]}
    return ResetResponse(**fields, left_out=max(0, len(report.deleted) - MAX_LISTED))


def make_plan_response(report: PlanReport, *, include_yaml: bool) -> PlanResponse:
    """Return a plan with the reason of each workload."""
    reasons = {explanation.workload: explanation for explanation in report.explanation}
    workloads = []
    for assignment in report.plan.assignments[:MAX_LISTED]:
        reason = reasons.get(assignment.workload)
        next_best, why_not = (reason.next_best, reason.message) if reason else (None, "")
        workloads.append(PlacedWorkload(**dict(assignment), next_best=next_best, why_not=why_not))
    lists: dict[str, list[Any]] = {
        "workloads": report.plan.assignments,
        "policies": report.plan.configurations,
        "unplaced": report.unplaced,
        "missing_scores": report.missing_scores,
        "changes": [change for change in report.changes if change.change != "unchanged"],
        "warnings": report.warnings,
    }
    values = {name: value for name, value in report if name in PlanResponse.model_fields}
    values |= {name: items[:MAX_LISTED] for name, items in lists.items()} | {"workloads": workloads}
    values["next_step"] = _describe_next_step(report)
    values["left_out"] = {name: len(items) - MAX_LISTED for name, items in lists.items() if len(items) > MAX_LISTED}
    values["output_yaml"] = report.output_yaml if include_yaml else None
    return PlanResponse(**values)


def _describe_next_step(report: PlanReport) -> str:
    if report.applied:
        return (
            "The plan is in force. Clusters first apply their policies; workloads are placed once "
            "policy-watcher-claim is compliant. `reset` removes it."
        )
    if any(warning.startswith("cannot be applied") for warning in report.warnings):
        return "Nothing was written, and this plan cannot be applied: see warnings. Propose again after fixing them."
    return (
        "Nothing was written. Show the plan to the user. To apply it, call apply_plan with the same "
        f"arguments and planId {report.plan_id}."
    )
