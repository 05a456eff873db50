"""Explains a Placement's clusters and the effect of other scores, as data. Pure functions; `reader` reads the input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import Field

from dsf.fleet.views import Time, View
from dsf.placements.scheduling import (
    Manifest,
    Prioritizer,
    SchedulerResult,
    SchedulingDecision,
    ScoreKey,
    Situation,
    Standing,
    decide_placement,
    find_cel_resources,
    parse_moment,
)
from dsf.text import list_names

_DISABLED: Final = "cluster.open-cluster-management.io/experimental-scheduling-disable"
_BUILTIN: Final = {
    "Steady": "100 for a cluster that the Placement has, 0 for others: fewer moves",
    "Balance": "100 for a cluster that no other Placement has, down to -100 for the one that most of them have",
    "ResourceAllocatableCPU": "-100 to 100 from the least to the most allocatable CPU",
    "ResourceAllocatableMemory": "-100 to 100 from the least to the most allocatable memory",
}


class PrioritizerView(View):
    """A prioritizer of a Placement."""

    name: str
    weight: int
    resource: str = Field(default="", description="Name of the AddOnPlacementScores; empty for a built-in one.")
    score: str = Field(default="", description="Name of the item in the AddOnPlacementScores.")
    meaning: str


class CellView(View):
    """The value of one prioritizer for one cluster."""

    value: int
    points: int = Field(description="weight x value")
    standing: Standing = Field(
        description="counted; or why the value is 0: missing (no AddOnPlacementScore), expired, no-item (it has none "
        "of this name), unknown (the cluster does not say how much it has); asked: a what-if"
    )
    valid_until: Time | None = None


class RankedCluster(View):
    """A cluster that the Placement can select."""

    cluster: str
    rank: int
    total: int
    cells: list[CellView] = Field(description="Values in the order of the prioritizers.")
    decided: bool = Field(description="True if the Placement currently selects the cluster.")
    chosen: bool = Field(description="True if the cluster would be chosen now.")
    margin: int | None = Field(
        description="Points that it may lose and stay chosen; below zero: those that it lacks to be chosen. null where "
        "every cluster is chosen, or none."
    )


class LeftOutView(View):
    """A cluster that the Placement cannot select."""

    cluster: str
    stage: str = Field(description="cluster set, predicate, taint, or filter (OCM said so)")
    reason: str
    decided: bool


class WhatIf(View):
    """A hypothetical score."""

    cluster: str
    resource: str
    score: str
    value: int | None = Field(description="null: the score does not exist.")


class WhatIfView(View):
    """The decision with hypothetical scores."""

    asked: list[WhatIf]
    enters: list[str]
    leaves: list[str]
    ranking: list[RankedCluster]


class PlacementView(View):
    """A Placement with the reasons of its decision."""

    namespace: str
    name: str
    at: Time
    number_of_clusters: int | None = Field(description="null: all clusters that pass the filters.")
    decided: list[str] = Field(description="Clusters in the PlacementDecisions of the Placement.")
    chosen: list[str] = Field(description="Clusters that would be chosen now, best first.")
    agrees: bool | None = Field(
        description="Both are the same clusters. null: not known, as CEL expressions of predicates are not evaluated."
    )
    source: Literal["ocm", "computed"] = Field(
        description="ocm: filters and values are what OCM's own scheduler answered; computed: they follow its rules"
    )
    source_note: str = ""
    problem: str = Field(default="", description="Why no decision is possible.")
    conditions: list[str] = Field(
        default=[], description="Conditions of the Placement, as `Type=Status Reason: message`."
    )
    prioritizers: list[PrioritizerView] = Field(default=[])
    ranking: list[RankedCluster] = Field(default=[], description="Clusters that can be selected, best first.")
    left_out: list[LeftOutView] = Field(default=[])
    what_if: WhatIfView | None = None
    notes: list[str] = Field(default=[])


class PlacementSummary(View):
    """A Placement in a list."""

    namespace: str
    name: str
    number_of_clusters: int | None
    selected: int
    satisfied: str = Field(description="Status of the condition PlacementSatisfied; empty before the first decision.")
    scores: list[str] = Field(description="The AddOn scores that it prefers, `resource/score`.")


class PlacementList(View):
    """All Placements, or those of one namespace."""

    placements: list[PlacementSummary]


def explain(
    situation: Situation,
    *,
    scheduler_result: SchedulerResult | None = None,
    source_note: str = "",
    hypothetical_scores: Sequence[WhatIf] = (),
) -> PlacementView:
    """Return the explanation of a Placement. `scheduler_result` is the response of OCM's scheduler, if queried."""
    outcome = decide_placement(situation, scheduler_result=scheduler_result)
    metadata, spec = situation.placement["metadata"], situation.spec
    view = PlacementView(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        at=situation.now,
        number_of_clusters=spec.get("numberOfClusters"),
        decided=sorted(situation.decided),
        chosen=outcome.chosen,
        agrees=_check_agreement(situation, outcome, scheduler_result),
        source="computed" if scheduler_result is None else "ocm",
        source_note=source_note,
        problem=outcome.problem,
        conditions=_list_conditions(situation.placement),
        prioritizers=[_make_prioritizer(prioritizer) for prioritizer in outcome.prioritizers],
        ranking=rank_clusters(outcome, situation),
        left_out=[
            LeftOutView(cluster=name, stage=stage, reason=reason, decided=name in situation.decided)
            for name, (stage, reason) in sorted(outcome.left_out.items())
        ],
    )
    notes = list(_list_notes(situation, outcome, view, scheduler_result))
    if not hypothetical_scores:
        return view.model_copy(update={"notes": notes})
    return view.model_copy(
        update={"notes": notes, "what_if": _make_what_if(situation, outcome, hypothetical_scores, scheduler_result)}
    )


def _check_agreement(
    situation: Situation, outcome: SchedulingDecision, scheduler_result: SchedulerResult | None
) -> bool | None:
    """Return True if the Placement has the clusters that OCM would choose now; None if CEL expressions may decide."""
    if set(outcome.chosen) == situation.decided:
        return True
    if not outcome.has_cel or scheduler_result is not None or outcome.problem:
        return False
    # CEL expressions only exclude clusters, so the decided clusters may be the result if all of them are candidates.
    requested_number = situation.spec.get("numberOfClusters")
    is_possible = situation.decided <= set(outcome.order) and (
        requested_number is None or len(situation.decided) <= int(requested_number)
    )
    return None if is_possible else False


def rank_clusters(outcome: SchedulingDecision, situation: Situation) -> list[RankedCluster]:
    """Return the eligible clusters, best first."""
    chosen_clusters = set(outcome.chosen)
    return [
        RankedCluster(
            cluster=name,
            rank=rank,
            total=outcome.totals[name],
            cells=[
                CellView(
                    value=value.score,
                    points=prioritizer.weight * value.score,
                    standing=value.standing,
                    valid_until=value.valid_until,
                )
                for prioritizer, value in zip(outcome.prioritizers, outcome.values[name], strict=True)
            ],
            decided=name in situation.decided,
            chosen=name in chosen_clusters,
            margin=_compute_margin(outcome, name, is_chosen=name in chosen_clusters),
        )
        for rank, name in enumerate(outcome.order, 1)
    ]


def _compute_margin(outcome: SchedulingDecision, name: str, *, is_chosen: bool) -> int | None:
    """Return the points that a chosen cluster may lose, or minus the points that another one lacks.

    Returns None if all clusters are chosen, or none.
    """
    count = len(outcome.chosen)
    if not 0 < count < len(outcome.order):
        return None
    # Compare with the nearest cluster on the other side of the cut; equal sums are sorted by name.
    other_cluster = outcome.order[count] if is_chosen else outcome.order[count - 1]
    return (
        outcome.totals[name]
        - outcome.totals[other_cluster]
        - (name > other_cluster if is_chosen else -(name < other_cluster) + 1)
    )


def _make_what_if(
    situation: Situation,
    current_decision: SchedulingDecision,
    hypothetical_scores: Sequence[WhatIf],
    scheduler_result: SchedulerResult | None,
) -> WhatIfView:
    values = {ScoreKey(change.cluster, change.resource, change.score): change.value for change in hypothetical_scores}
    new_decision = decide_placement(situation, hypothetical_scores=values, scheduler_result=scheduler_result)
    return WhatIfView(
        asked=list(hypothetical_scores),
        enters=[name for name in new_decision.chosen if name not in current_decision.chosen],
        leaves=[name for name in current_decision.chosen if name not in new_decision.chosen],
        ranking=rank_clusters(new_decision, situation),
    )


def _make_prioritizer(prioritizer: Prioritizer) -> PrioritizerView:
    meaning = (
        f"item {prioritizer.score!r} of the AddOnPlacementScore {prioritizer.resource!r} in each cluster's namespace"
    )
    return PrioritizerView(
        name=prioritizer.name,
        weight=prioritizer.weight,
        resource=prioritizer.resource,
        score=prioritizer.score,
        meaning=meaning if prioritizer.is_addon else _BUILTIN[prioritizer.name],
    )


def _list_notes(
    situation: Situation, outcome: SchedulingDecision, view: PlacementView, scheduler_result: SchedulerResult | None
) -> Any:
    if (situation.placement["metadata"].get("annotations") or {}).get(_DISABLED) == "true":
        yield f"OCM ignores it: the annotation {_DISABLED} is set"
    if outcome.has_cel and scheduler_result is None:
        yield (
            "CEL expressions of its predicates are not evaluated here: the ranking includes the clusters that they "
            "exclude"
        )
    if view.agrees is None:
        yield (
            "whether OCM would choose others now is unknown for the same reason; OCM's own scheduler answers it, if "
            "DSF_PLACEMENT_DEBUGGER is set"
        )
    yield from _list_cel_notes(situation)
    if not situation.cluster_sets:
        yield "no ManagedClusterSet is bound to its namespace, so it has no clusters"
    if (requested_number := situation.spec.get("numberOfClusters")) is not None and len(outcome.chosen) < int(
        requested_number
    ):
        yield f"{int(requested_number) - len(outcome.chosen)} clusters fewer than it asks for pass its filters"
    if view.agrees is False and not outcome.problem:
        has_expired_score = any(cell.standing == "expired" for ranked in view.ranking for cell in ranked.cells)
        because = (
            "a score has expired, which OCM only notices with another change"
            if has_expired_score
            else "OCM has not evaluated it since a change"
        )
        yield f"its clusters are not those that would be chosen now: {because}"
    for number, prioritizer in enumerate(view.prioritizers):
        without = [
            ranked.cluster for ranked in view.ranking if ranked.cells[number].standing not in ("counted", "asked")
        ]
        if without:
            names = list_names(without, 5)
            yield f"{prioritizer.name} counts 0 on {len(without)} of {len(view.ranking)} clusters: {names}"


def _list_cel_notes(situation: Situation) -> Iterator[str]:
    """Yield notes on CEL expressions of predicates, which read scores in another way than prioritizers."""
    resources = find_cel_resources(situation.spec)
    # Read the spec instead of the outcome, which lacks prioritizers of weight 0, although OCM watches their scores.
    policy = situation.spec.get("prioritizerPolicy") or {}
    coordinates = [entry.get("scoreCoordinate") or {} for entry in policy.get("configurations") or ()]
    watched = {(coordinate.get("addOn") or {}).get("resourceName") for coordinate in coordinates}
    if unwatched := [name for name in resources if name not in watched]:
        yield (
            f"OCM does not evaluate it again when {list_names(unwatched, 5)} changes, because only a CEL expression "
            "reads it: add a prioritizer of weight 0 with this score (docs/placement.md)"
        )
    expired_clusters = sorted(
        cluster
        for (cluster, resource), score in situation.scores.items()
        if resource in resources
        and (valid_until := parse_moment((score.get("status") or {}).get("validUntil"))) is not None
        and situation.now > valid_until
    )
    if expired_clusters:
        names = list_names(expired_clusters, 5)
        yield f"CEL expressions ignore validUntil: they read expired scores of {names} as valid"


def _list_conditions(placement: Manifest) -> list[str]:
    return [
        f"{condition.get('type')}={condition.get('status')} {condition.get('reason')}: {condition.get('message')}"
        for condition in (placement.get("status") or {}).get("conditions") or ()
    ]


def make_summary(placement: Mapping[str, Any]) -> PlacementSummary:
    """Return the summary of a Placement for a list."""
    spec, status = placement.get("spec") or {}, placement.get("status") or {}
    addons = [
        configuration["scoreCoordinate"]["addOn"]
        for configuration in (spec.get("prioritizerPolicy") or {}).get("configurations") or ()
        if (configuration.get("scoreCoordinate") or {}).get("addOn")
    ]
    satisfied = [
        condition for condition in status.get("conditions") or () if condition.get("type") == "PlacementSatisfied"
    ]
    return PlacementSummary(
        namespace=placement["metadata"].get("namespace", ""),
        name=placement["metadata"]["name"],
        number_of_clusters=spec.get("numberOfClusters"),
        selected=int(status.get("numberOfSelectedClusters") or 0),
        satisfied=str(satisfied[0].get("status")) if satisfied else "",
        scores=[f"{addon.get('resourceName')}/{addon.get('scoreName')}" for addon in addons],
    )
