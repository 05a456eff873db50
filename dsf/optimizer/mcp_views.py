"""What tools answer: the service's views, cut to what an assistant can read at once.

Whatever is left out is counted, and the answer says how to ask for it.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from dsf.optimizer.scores import DESCRIPTION, DIMENSION_FORMAT
from dsf.optimizer.views import (
    AssignmentView,
    ChangeView,
    ConfigurationView,
    Coverage,
    Freshness,
    OptionView,
    PlanReport,
    ScoreGapView,
    ScoreObject,
    ScorerView,
    Status,
    UnplacedView,
    View,
)

#: Objects of one kind in one answer.
MAX_LISTED: Final = 100


class ScoreBrief(View):
    """One AddOnPlacementScore of one cluster."""

    cluster: str
    score: str = Field(description="What a preference names.")
    meaning: str = Field(description="What the numbers measure, in the words of whoever made the scorer.")
    item_names: str = Field(description="How the items are named; a preference takes it as scoreDimensionFormat.")
    freshness: Freshness
    items: dict[str, int] = Field(description="Highest first. From -100 to 100.")
    more_items: int = Field(description="How many lower ones are left out; ask for more with maxItems.")


class ScoresAnswer(View):
    """Answer of list_scores."""

    scores: list[ScoreBrief]
    left_out: int = Field(description="How many more there are; ask for one cluster or one score to see them.")


class ScorerAnswer(ScorerView):
    """Answer of explain_scorer."""

    clusters: int = Field(description="On how many clusters there are scores.")
    expired: int = Field(description="On how many of them they have expired. Those come first in scores.")


class PlacedWorkload(AssignmentView):
    """Replicas of a workload on one cluster, and why there."""

    next_best: OptionView | None = Field(description="The best option that was not taken.")
    why_not: str = Field(description="Why it was not taken.")


class PlanAnswer(View):
    """Answer of propose_plan and apply_plan."""

    next_step: str = Field(description="What to do with this answer.")
    namespace: str
    plan_id: str
    applied: bool
    status: Status = Field(description="Optimal: no better plan exists. Feasible: a good one, see gap.")
    coverage: Coverage = Field(
        description="What of the workloads is placed: AllPlaced, PartPlaced, NothingPlaced; NothingToPlace."
    )
    objective_value: float = Field(description="Sum of the scores of all that is placed.")
    gap: float = Field(description="How far below the best one the plan can be at most, as a share; 0: it is the best.")
    warnings: list[str] = Field(description="What may keep the plan from taking effect.")
    workloads: list[PlacedWorkload]
    policies: list[ConfigurationView] = Field(description="How clusters are set up for it.")
    unplaced: list[UnplacedView] = Field(description="What goes nowhere, and why.")
    missing_scores: list[ScoreGapView]
    changes: list[ChangeView] = Field(description="What was written, or of a proposal would be; without the unchanged.")
    left_out: dict[str, int] = Field(description="How many more there are of a list above.")
    output_yaml: str | None = Field(description="The objects of the plan, when includeYaml asked for them.")


def score_brief(score: ScoreObject, max_items: int) -> ScoreBrief:
    """One score with its highest items."""
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


def scorer_answer(view: ScorerView) -> ScorerAnswer:
    """A scorer with the scores that somebody has to look at first."""
    scores = sorted(view.scores, key=lambda one: (not one.freshness.expired, one.cluster))
    fields = dict(view) | {"scores": scores[:MAX_LISTED]}
    expired = sum(one.freshness.expired for one in scores)
    return ScorerAnswer(**fields, clusters=len(scores), expired=expired)


def plan_answer(report: PlanReport, *, include_yaml: bool) -> PlanAnswer:
    """A plan with the reasons beside the workloads that they are about."""
    reasons = {one.workload: one for one in report.explanation}
    workloads = []
    for one in report.plan.assignments[:MAX_LISTED]:
        reason = reasons.get(one.workload)
        best, why_not = (reason.next_best, reason.message) if reason else (None, "")
        workloads.append(PlacedWorkload(**dict(one), next_best=best, why_not=why_not))
    lists: dict[str, list[Any]] = {
        "workloads": report.plan.assignments,
        "policies": report.plan.configurations,
        "unplaced": report.unplaced,
        "missing_scores": report.missing_scores,
        "changes": [one for one in report.changes if one.change != "unchanged"],
        "warnings": report.warnings,
    }
    values = {name: value for name, value in report if name in PlanAnswer.model_fields}
    values |= {name: found[:MAX_LISTED] for name, found in lists.items()} | {"workloads": workloads}
    values["next_step"] = _next_step(report)
    values["left_out"] = {name: len(found) - MAX_LISTED for name, found in lists.items() if len(found) > MAX_LISTED}
    values["output_yaml"] = report.output_yaml if include_yaml else None
    return PlanAnswer(**values)


def _next_step(report: PlanReport) -> str:
    if report.applied:
        return (
            "The plan is in force. Clusters become what their policies want first; workloads go there when "
            "policy-watcher-claim says compliant. `reset` undoes it."
        )
    if any(warning.startswith("cannot be applied") for warning in report.warnings):
        return "Nothing was written, and this plan cannot be applied: see warnings. Propose again when that is mended."
    return (
        "Nothing was written. Show the plan to the person who asked. To put it in force, call apply_plan with the same "
        f"arguments and planId {report.plan_id}."
    )
