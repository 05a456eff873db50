"""The tools that an assistant gets: few, each a whole task, with words that say when to use it.

One line of `TOOLS` is one tool. Names of arguments are those of the HTTP API, so that a file that was written for it
can be used as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from mcp.types import ToolAnnotations
from pydantic import ConfigDict, Field, create_model

from dsf.api.meta import ApiModel
from dsf.optimizer.mcp_views import (
    MAX_LISTED,
    PlanAnswer,
    ScorerAnswer,
    ScoresAnswer,
    plan_answer,
    score_brief,
    scorer_answer,
)
from dsf.optimizer.params import Name, Namespace, OptimizeParams
from dsf.optimizer.views import PlanList, PlanReport, RescoreReport, ResetReport, ScoreList, ScorerView, View


class Service(Protocol):
    """What the tools are made of: `OptimizerService`, or the same with rights."""

    def list_scores(self, namespace: str | None = None) -> ScoreList:
        """The scores of one cluster or all."""

    def explain_scorer(self, name: str) -> ScorerView:
        """What a scorer is and how it does."""

    def propose(self, params: OptimizeParams) -> PlanReport:
        """The best plan; nothing is written."""

    def apply(self, params: OptimizeParams) -> PlanReport:
        """Put the best plan in force."""

    def reset(self, namespace: str) -> ResetReport:
        """Delete what plans made in a namespace."""

    def plans(self, namespace: str | None = None) -> PlanList:
        """The plans in force."""

    def rescore(self, scorer: str, cluster: str | None = None) -> RescoreReport:
        """Send a tick now."""


class Arguments(ApiModel):
    """Arguments of a tool. Unknown ones are refused: a wish that is not understood must not be passed over."""

    model_config = ConfigDict(frozen=True)


class ListScores(Arguments):
    """See the tool."""

    cluster: Name | None = Field(default=None, description="Only this cluster's.")
    score: Name | None = Field(default=None, description="Only AddOnPlacementScores of this name.")
    max_items: int = Field(default=30, ge=1, le=1000, description="Most items of each score.")


class ExplainScorer(Arguments):
    """See the tool."""

    name: Name = Field(description="Name of the DynamicScorer, or of its AddOnPlacementScores.")


class InNamespace(Arguments):
    """See the tool."""

    namespace: Namespace = Field(description="Namespace of the plan.")


class ListPlans(Arguments):
    """See the tool."""

    namespace: Namespace | None = Field(default=None, description="Only this namespace's.")


class Rescore(Arguments):
    """See the tool."""

    scorer: Name = Field(description="Name of the DynamicScorer.")
    cluster: Name | None = Field(default=None, description="Only on this cluster; without it wherever the scorer runs.")


_INCLUDE_YAML: Final[tuple[Any, Any]] = (
    bool,
    Field(default=False, description="Also answer the objects of the plan as YAML, which may be long."),
)
_PLAN_ID: Final[tuple[Any, Any]] = (
    str,
    Field(
        min_length=1,
        max_length=64,
        description="The plan_id of the proposal that was agreed to. No other plan is applied.",
    ),
)


def _plan_arguments(name: str, **more: tuple[Any, Any]) -> type[Arguments]:
    """The arguments of a plan: all that the HTTP API takes, without what the tool itself says."""
    fields: dict[str, Any] = {
        key: (field.annotation, field)
        for key, field in OptimizeParams.model_fields.items()
        if key not in ("dry_run", "plan_id")
    }
    fields |= more
    return create_model(name, __base__=Arguments, **fields)


ProposePlan: Final = _plan_arguments("ProposePlan", include_yaml=_INCLUDE_YAML)
ApplyPlan: Final = _plan_arguments("ApplyPlan", plan_id=_PLAN_ID, include_yaml=_INCLUDE_YAML)


@dataclass(frozen=True)
class Tool:
    """One tool. `call` gets arguments that fit `arguments`; it blocks, and raises as the service does."""

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    answer: type[View]
    call: Callable[[Service, Any], View]
    annotations: ToolAnnotations


def _list_scores(service: Service, asked: ListScores) -> ScoresAnswer:
    found = [one for one in service.list_scores(asked.cluster).items if asked.score in (None, one.metadata["name"])]
    return ScoresAnswer(
        scores=[score_brief(one, asked.max_items) for one in found[:MAX_LISTED]],
        left_out=max(0, len(found) - MAX_LISTED),
    )


def _explain_scorer(service: Service, asked: ExplainScorer) -> ScorerAnswer:
    return scorer_answer(service.explain_scorer(asked.name))


def _propose(service: Service, asked: Any) -> PlanAnswer:
    return plan_answer(service.propose(_params(asked)), include_yaml=asked.include_yaml)


def _apply(service: Service, asked: Any) -> PlanAnswer:
    return plan_answer(service.apply(_params(asked)), include_yaml=asked.include_yaml)


def _reset(service: Service, asked: InNamespace) -> ResetReport:
    return service.reset(asked.namespace)


def _list_plans(service: Service, asked: ListPlans) -> PlanList:
    return service.plans(asked.namespace)


def _rescore(service: Service, asked: Rescore) -> RescoreReport:
    return service.rescore(asked.scorer, asked.cluster)


def _params(asked: Arguments) -> OptimizeParams:
    """The same as a request of the HTTP API. Raises ValidationError for what only the whole of it can tell."""
    return OptimizeParams.model_validate(asked.model_dump(by_alias=True, exclude={"include_yaml"}, exclude_unset=True))


def _reads() -> ToolAnnotations:
    return ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)


def _replaces() -> ToolAnnotations:
    return ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)


_ALL: Final = (
    Tool(
        "list_scores",
        "List scores",
        "What is known about clusters right now: every score with what it means, how fresh it is and its values. "
        "Use it to answer questions about clusters and to find the score that a plan should prefer. "
        "Scores are whole numbers from -100 to 100 and more is better, unless the meaning says otherwise. "
        "Values whose freshness says expired must not be used as if they were of now.",
        ListScores,
        ScoresAnswer,
        _list_scores,
        _reads(),
    ),
    Tool(
        "explain_scorer",
        "Explain a scorer",
        "What one scorer measures, how often, whether it works, why it fails where it fails, and how fresh its scores "
        "are on each cluster. Use it when a score is missing, old or surprising.",
        ExplainScorer,
        ScorerAnswer,
        _explain_scorer,
        _reads(),
    ),
    Tool(
        "propose_plan",
        "Propose a plan",
        "Find the best arrangement: which of its available policies each cluster is given, and which workload goes to "
        "which cluster, so that the sum of the preferred scores is greatest and everything fits. "
        "Writes nothing. The answer says why each workload is where it is, what could not be placed and why, what "
        "would be changed, and the plan_id with which apply_plan puts this very plan in force. "
        "The names of clusters, policies and workloads have to come from the person who asks, for example from their "
        "parameter file; list_scores knows the scores.",
        ProposePlan,
        PlanAnswer,
        _propose,
        _reads(),
    ),
    Tool(
        "apply_plan",
        "Apply a plan",
        "Put a proposed plan in force: writes Placements and PlacementBindings on the hub, in place of those of the "
        "namespace's previous plan. Clusters may be set up anew and workloads may move, so call it only after the "
        "person who asked has agreed to the proposal. It takes the arguments of propose_plan, and as planId the "
        "proposal's plan_id; when scores have changed so that another plan would be best, nothing is written and the "
        "answer says so. All is written or nothing.",
        ApplyPlan,
        PlanAnswer,
        _apply,
        _replaces(),
    ),
    Tool(
        "reset",
        "Reset a namespace",
        "Delete every Placement and PlacementBinding that plans made in a namespace. Workloads that they placed are "
        "taken away and policies are unbound, so call it only when the person who asked wants exactly that.",
        InNamespace,
        ResetReport,
        _reset,
        _replaces(),
    ),
    Tool(
        "list_plans",
        "List plans",
        "The plans that are in force, one per namespace: which workload is planned for which cluster and how clusters "
        "are set up for it. Use it before a reset, and to see whether a plan is still complete.",
        ListPlans,
        PlanList,
        _list_plans,
        _reads(),
    ),
    Tool(
        "rescore",
        "Score now",
        "Ask for fresh scores of one scorer now instead of at its next interval. It returns at once with the ids of "
        "the runs; new values show up in list_scores some seconds later. It costs calls of the scoring API, so do not "
        "repeat it in a loop.",
        Rescore,
        RescoreReport,
        _rescore,
        # It calls scoring APIs, whoever runs them.
        ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=True),
    ),
)

TOOLS: Final[Mapping[str, Tool]] = {tool.name: tool for tool in _ALL}
