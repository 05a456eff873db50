"""Compares the plan in force with a proposed one, by workload and cluster. No input and output."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from dsf.optimizer.plan import Plan
from dsf.optimizer.views import AssignmentView, ConfigurationView, ExplanationView, OptimizerView, PlanView

Change = Literal["stays", "moves", "is placed", "is taken away", "is nowhere"]


class Block(OptimizerView):
    """Replicas of one workload on one cluster."""

    workload: str
    replicas: int
    score: float
    share: float


class Column(OptimizerView):
    """One cluster in a plan; without a policy it is not used."""

    cluster: str
    policy: str = ""
    device: str = ""
    supply: dict[str, int] = Field(default={})
    used: dict[str, int] = Field(default={})
    blocks: list[Block] = Field(default=[])


class ClusterChange(OptimizerView):
    """One cluster now and as proposed."""

    cluster: str
    now: Column
    proposed: Column
    changes: bool


class Place(OptimizerView):
    """Where replicas of a workload are."""

    cluster: str
    device: str
    replicas: int
    score: float


class Move(OptimizerView):
    """The change of one workload, with its reason."""

    workload: str
    change: Change
    now: list[Place] = Field(default=[])
    proposed: list[Place] = Field(default=[])
    unplaced: int = 0
    why: str = ""
    next_best: str = ""


class Comparison(OptimizerView):
    """Both plans in full."""

    score_now: float
    score_proposed: float
    clusters: list[ClusterChange]
    moves: list[Move]


def compare(now: PlanView, plan: Plan) -> Comparison:
    """The changes of `plan`, changed workloads and clusters first, then by name."""
    clusters = sorted({configuration.cluster for configuration in (*now.configurations, *plan.configurations)})
    before, after = _columns(now, plan.requests), _columns(plan.placed, plan.requests)
    changes = []
    for name in clusters:
        old, new = before.get(name, Column(cluster=name)), after.get(name, Column(cluster=name))
        changes.append(
            ClusterChange(cluster=name, now=old, proposed=new, changes=_without_scores(old) != _without_scores(new))
        )
    moves = _moves(now, plan)
    return Comparison(
        score_now=sum(assignment.score * assignment.replicas for assignment in now.assignments),
        score_proposed=plan.score_sum,
        clusters=sorted(changes, key=lambda change: (not change.changes, change.cluster)),
        moves=sorted(moves, key=lambda move: (move.change == "stays", move.workload)),
    )


def _columns(plan: PlanView, requests: Mapping[str, Mapping[str, int]]) -> dict[str, Column]:
    on: dict[str, list[AssignmentView]] = defaultdict(list)
    for assignment in plan.assignments:
        on[assignment.cluster].append(assignment)
    return {
        chosen.cluster: Column(
            cluster=chosen.cluster,
            policy=chosen.policy,
            device=chosen.device,
            supply=chosen.supply,
            used=chosen.used,
            blocks=[
                Block(
                    workload=assignment.workload,
                    replicas=assignment.replicas,
                    score=assignment.score,
                    share=share(assignment, chosen, requests.get(assignment.workload) or {}),
                )
                for assignment in sorted(
                    on[chosen.cluster], key=lambda assignment: (-assignment.score, assignment.workload)
                )
            ],
        )
        for chosen in plan.configurations
    }


def share(assignment: AssignmentView, chosen: ConfigurationView, request: Mapping[str, int]) -> float:
    """The share of a configuration that replicas use, of the most used resource."""
    amounts = [(amount, chosen.supply.get(kind, 0)) for kind, amount in request.items()]
    return max([0.0, *(amount * assignment.replicas / supply for amount, supply in amounts if supply)])


def _without_scores(column: Column) -> tuple[str, list[tuple[str, int]]]:
    """Without scores: other scores change nothing on the cluster."""
    return column.policy, sorted((block.workload, block.replicas) for block in column.blocks)


def _moves(now: PlanView, plan: Plan) -> list[Move]:
    before, after = _places(now), _places(plan.placed)
    reasons = {explanation.workload: explanation for explanation in plan.explanation}
    unplaced = {entry.workload: entry for entry in plan.unplaced}
    moves = []
    for name in sorted(before.keys() | after.keys() | reasons.keys() | unplaced.keys()):
        old, new, rest, reason = before.get(name, []), after.get(name, []), unplaced.get(name), reasons.get(name)
        moves.append(
            Move(
                workload=name,
                change=_change(old, new),
                now=old,
                proposed=new,
                unplaced=rest.replicas if rest else 0,
                why=rest.message if rest else reason.message if reason else "",
                next_best=_option(reason),
            )
        )
    return moves


def _places(plan: PlanView) -> dict[str, list[Place]]:
    places: dict[str, list[Place]] = defaultdict(list)
    for assignment in plan.assignments:
        places[assignment.workload].append(
            Place(
                cluster=assignment.cluster,
                device=assignment.device,
                replicas=assignment.replicas,
                score=assignment.score,
            )
        )
    return places


def _change(old: list[Place], new: list[Place]) -> Change:
    if not new:
        return "is taken away" if old else "is nowhere"
    if not old:
        return "is placed"
    return "stays" if _where(old) == _where(new) else "moves"


def _where(places: list[Place]) -> Counter[tuple[str, str]]:
    return Counter({(place.cluster, place.device): place.replicas for place in places})


def _option(reason: ExplanationView | None) -> str:
    if reason is None or reason.next_best is None:
        return ""
    option = reason.next_best
    return f"{option.cluster} with {option.device} ({option.score:g})"
