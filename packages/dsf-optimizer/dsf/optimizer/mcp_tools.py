"""The tools for assistants, each of which does a complete task.

Arguments have the same names as in the HTTP API, so that users can reuse its parameter files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from mcp.types import ToolAnnotations
from pydantic import ConfigDict, Field, create_model

from dsf.api.meta import ApiModel
from dsf.api.naming import sanitize_resource_name
from dsf.optimizer.mcp_views import (
    MAX_LISTED,
    PlanResponse,
    PlansResponse,
    ResetResponse,
    ScorerResponse,
    ScoresResponse,
    make_plan_response,
    make_plans_response,
    make_reset_response,
    make_score_brief,
    make_scorer_response,
)
from dsf.optimizer.params import Name, Namespace, OptimizeParams, ScoreName
from dsf.optimizer.service import OptimizerService
from dsf.optimizer.views import OptimizerView, RescoreReport


class Arguments(ApiModel):
    """Base of the arguments of a tool. Unknown arguments are errors."""

    model_config = ConfigDict(frozen=True)


class ListScores(Arguments):
    """Arguments of list_scores."""

    cluster: Name | None = Field(default=None, description="Only scores of this cluster.")
    score: ScoreName | None = Field(default=None, description="Only scores with this name.")
    max_items: int = Field(default=30, ge=1, le=1000, description="Maximum number of items of each score.")


class ExplainScorer(Arguments):
    """Arguments of explain_scorer."""

    name: ScoreName = Field(description="Name of the DynamicScorer, of its score, or of its AddOnPlacementScores.")


class Reset(Arguments):
    """Arguments of reset."""

    namespace: Namespace = Field(description="Namespace of the plan.")


class ListPlans(Arguments):
    """Arguments of list_plans."""

    namespace: Namespace | None = Field(default=None, description="Only the plan of this namespace.")


class Rescore(Arguments):
    """Arguments of rescore."""

    scorer: Name = Field(description="Name of the DynamicScorer.")
    cluster: Name | None = Field(
        default=None, description="Only on this cluster. Default: on all clusters of the scorer."
    )


#: Fields of a plan's arguments: the parameters of the HTTP API, except `dry_run` and `plan_id`, which differ by tool.
_PLAN_FIELDS: Final[dict[str, Any]] = {
    name: (field.annotation, field)
    for name, field in OptimizeParams.model_fields.items()
    if name not in ("dry_run", "plan_id")
}
_INCLUDE_YAML_FIELD: Final[tuple[Any, Any]] = (
    bool,
    Field(default=False, description="Also return the objects of the plan as YAML, which may be long."),
)
_PLAN_ID_FIELD: Final[tuple[Any, Any]] = (
    str,
    Field(
        min_length=1,
        max_length=64,
        description="The plan_id of the proposal to which the user has agreed. Only this plan is applied.",
    ),
)
ProposePlan: Final = create_model("ProposePlan", __base__=Arguments, **_PLAN_FIELDS, include_yaml=_INCLUDE_YAML_FIELD)
ApplyPlan: Final = create_model(
    "ApplyPlan", __base__=Arguments, **_PLAN_FIELDS, plan_id=_PLAN_ID_FIELD, include_yaml=_INCLUDE_YAML_FIELD
)


@dataclass(frozen=True)
class Tool:
    """The definition of a tool: texts for assistants, models of the arguments and the response, and a function."""

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    response: type[OptimizerView]
    #: Performs the task with the service and validated arguments. Blocks, and raises the service's errors.
    call: Callable[[OptimizerService, Any], OptimizerView]
    annotations: ToolAnnotations


def _list_scores(service: OptimizerService, arguments: ListScores) -> ScoresResponse:
    object_name = None if arguments.score is None else sanitize_resource_name(arguments.score)
    scores = [
        score for score in service.list_scores(arguments.cluster).items if object_name in (None, score.metadata["name"])
    ]
    return ScoresResponse(
        scores=[make_score_brief(score, arguments.max_items) for score in scores[:MAX_LISTED]],
        left_out=max(0, len(scores) - MAX_LISTED),
    )


def _make_plan(service: OptimizerService, arguments: Any, *, apply: bool) -> PlanResponse:
    """Propose a plan, or apply it with `apply`. `arguments` are of ProposePlan or ApplyPlan."""
    # OptimizeParams also checks rules that concern several fields, and raises ValidationError.
    params = OptimizeParams.model_validate(
        arguments.model_dump(by_alias=True, exclude={"include_yaml"}, exclude_unset=True)
    )
    return make_plan_response(
        service.apply(params) if apply else service.propose(params), include_yaml=arguments.include_yaml
    )


def _make_hints(
    *, is_read_only: bool = False, is_destructive: bool = False, is_external: bool = False
) -> ToolAnnotations:
    """Return the hints about a tool. A tool is idempotent if it is read-only or destructive."""
    return ToolAnnotations(
        read_only_hint=is_read_only,
        destructive_hint=is_destructive,
        idempotent_hint=is_read_only or is_destructive,
        open_world_hint=is_external,
    )


_TOOL_LIST: Final = (
    Tool(
        "list_scores",
        "List scores",
        "The current scores of clusters with meaning, age and values. Use it to answer questions about clusters and "
        "to find the score that a plan should prefer. "
        "Scores are whole numbers from -100 to 100 and more is better, unless the meaning says otherwise. "
        "Values whose freshness says expired must not be used as if they were of now.",
        ListScores,
        ScoresResponse,
        _list_scores,
        _make_hints(is_read_only=True),
    ),
    Tool(
        "explain_scorer",
        "Explain a scorer",
        "What one scorer measures, how often, whether it works, where and why it fails, and the age of its scores on "
        "each cluster. Use it when a score is missing, old or surprising.",
        ExplainScorer,
        ScorerResponse,
        lambda service, arguments: make_scorer_response(service.explain_scorer(arguments.name)),
        _make_hints(is_read_only=True),
    ),
    Tool(
        "propose_plan",
        "Propose a plan",
        "Find the best plan: a policy for each cluster and clusters for each workload, so that the sum of the "
        "preferred scores is greatest and everything fits. Writes nothing. The response explains the place of each "
        "workload, what could not be placed and why, the changes, and the plan_id with which apply_plan applies "
        "exactly this plan. The user must provide the names of clusters, policies and workloads, for example in a "
        "parameter file; list_scores has the scores.",
        ProposePlan,
        PlanResponse,
        partial(_make_plan, apply=False),
        _make_hints(is_read_only=True),
    ),
    Tool(
        "apply_plan",
        "Apply a plan",
        "Apply a proposed plan: writes Placements and PlacementBindings on the hub, in place of those of the "
        "namespace's previous plan. Clusters may be reconfigured and workloads may move, so call it only after the "
        "user has agreed to the proposal. It takes the arguments of propose_plan, and as planId the proposal's "
        "plan_id; if another plan is best by now, nothing is written and the response says so. The write is atomic.",
        ApplyPlan,
        PlanResponse,
        partial(_make_plan, apply=True),
        _make_hints(is_destructive=True),
    ),
    Tool(
        "reset",
        "Reset a namespace",
        "Delete every Placement and PlacementBinding that plans created in a namespace. Their workloads are removed "
        "and policies are unbound, so call it only if the user wants exactly that.",
        Reset,
        ResetResponse,
        lambda service, arguments: make_reset_response(service.reset(arguments.namespace)),
        _make_hints(is_destructive=True),
    ),
    Tool(
        "list_plans",
        "List plans",
        "The plans in force, one per namespace: the clusters of each workload and the configuration of each cluster. "
        "Use it before a reset, and to see whether a plan is still complete.",
        ListPlans,
        PlansResponse,
        lambda service, arguments: make_plans_response(service.plans(arguments.namespace)),
        _make_hints(is_read_only=True),
    ),
    Tool(
        "rescore",
        "Score now",
        "Request fresh scores of one scorer now instead of at its next interval. It returns immediately with the ids "
        "of the runs; new values appear in list_scores some seconds later. It costs calls of the scoring API, so do "
        "not repeat it in a loop.",
        Rescore,
        RescoreReport,
        lambda service, arguments: service.rescore(arguments.scorer, arguments.cluster),
        # The run calls the scoring API, which may be external.
        _make_hints(is_external=True),
    ),
)

TOOLS: Final[Mapping[str, Tool]] = {tool.name: tool for tool in _TOOL_LIST}
