"""A plan in the words of the answers."""

from __future__ import annotations

from dsf.optimizer.plan import Explanation, Plan
from dsf.optimizer.views import (
    AssignmentView,
    ConfigurationView,
    ExplanationView,
    OptionView,
    PlanView,
    ScoreGapView,
    UnplacedView,
)


def plan_view(plan: Plan) -> PlanView:
    """Who goes where, with which configuration."""
    return PlanView(
        assignments=[
            AssignmentView(
                workload=one.workload,
                cluster=one.cluster,
                policy=one.configuration,
                device=one.device,
                score=one.score,
                replicas=one.replicas,
                kept=one.kept,
            )
            for one in plan.assignments
        ],
        configurations=[
            ConfigurationView(
                cluster=one.cluster,
                policy=one.configuration,
                device=one.device,
                supply=dict(one.supply),
                used=dict(one.used),
            )
            for one in plan.configurations
        ],
    )


def unplaced_views(plan: Plan) -> list[UnplacedView]:
    """What goes nowhere."""
    return [
        UnplacedView(workload=one.workload, replicas=one.replicas, reason=one.reason.value, message=one.message)
        for one in plan.unplaced
    ]


def explanation_views(plan: Plan) -> list[ExplanationView]:
    """Why each workload is where it is."""
    return [_explanation(one) for one in plan.explanation]


def gap_views(plan: Plan) -> list[ScoreGapView]:
    """Scores that could not be used."""
    return [
        ScoreGapView(cluster=one.cluster, score=one.score, reason=one.reason.value, message=one.message)
        for one in plan.score_gaps
    ]


def _explanation(one: Explanation) -> ExplanationView:
    return ExplanationView(
        workload=one.workload,
        chosen=[_option(*option) for option in one.chosen],
        next_best=None if one.alternative is None else _option(*one.alternative),
        reason=one.reason.value,
        message=one.message,
        options_without_score=one.without_score,
        options_with_expired_score=one.expired,
    )


def _option(cluster: str, device: str, score: float) -> OptionView:
    return OptionView(cluster=cluster, device=device, score=score)
