"""Compares the plan in force with a proposed one, by workload and cluster. No input and output."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from dsf.optimizer.plan import Plan
from dsf.optimizer.views import AssignmentView, ConfigurationView, ExplanationView, PlanView, View

Change = Literal["stays", "moves", "is placed", "is taken away", "is nowhere"]


class Block(View):
    """Replicas of one workload on one cluster."""

    workload: str
    replicas: int
    score: float
    share: float


class Column(View):
    """One cluster in a plan; without a policy it is not used."""

    cluster: str
    policy: str = ""
    device: str = ""
    supply: dict[str, int] = Field(default={})
    used: dict[str, int] = Field(default={})
    blocks: list[Block] = Field(default=[])


class ClusterChange(View):
    """One cluster now and as proposed."""

    cluster: str
    now: Column
    proposed: Column
    changes: bool


class Place(View):
    """Where replicas of a workload are."""

    cluster: str
    device: str
    replicas: int
    score: float


class Move(View):
    """The change of one workload, with its reason."""

    workload: str
    change: Change
    now: list[Place] = Field(default=[])
    proposed: list[Place] = Field(default=[])
    unplaced: int = 0
    why: str = ""
    next_best: str = ""


class Comparison(View):
    """Both plans in full."""

    score_now: float
    score_proposed: float
    clusters: list[ClusterChange]
    moves: list[Move]


def compare(now: PlanView, plan: Plan) -> Comparison:
    """The changes of `plan`, changed workloads and clusters first, then by name."""
    clusters = sorted({one.cluster for one in (*now.configurations, *plan.configurations)})
    before, after = _columns(now, plan.requests), _columns(plan.placed, plan.requests)
    changes = []
    for name in clusters:
        old, new = before.get(name, Column(cluster=name)), after.get(name, Column(cluster=name))
        changes.append(ClusterChange(cluster=name, now=old, proposed=new, changes=_said(old) != _said(new)))
    moves = _moves(now, plan)
    return Comparison(
        score_now=sum(one.score * one.replicas for one in now.assignments),
        score_proposed=plan.score_sum,
        clusters=sorted(changes, key=lambda one: (not one.changes, one.cluster)),
        moves=sorted(moves, key=lambda one: (one.change == "stays", one.workload)),
    )


def _columns(plan: PlanView, requests: Mapping[str, Mapping[str, int]]) -> dict[str, Column]:
    on: dict[str, list[AssignmentView]] = defaultdict(list)
    for one in plan.assignments:
        on[one.cluster].append(one)
    return {
        chosen.cluster: Column(
            cluster=chosen.cluster,
            policy=chosen.policy,
            device=chosen.device,
            supply=chosen.supply,
            used=chosen.used,
            blocks=[
                Block(
                    workload=one.workload,
                    replicas=one.replicas,
                    score=one.score,
                    share=share(one, chosen, requests.get(one.workload) or {}),
                )
                for one in sorted(on[chosen.cluster], key=lambda one: (-one.score, one.workload))
            ],
        )
        for chosen in plan.configurations
    }


def share(one: AssignmentView, chosen: ConfigurationView, request: Mapping[str, int]) -> float:
    """The share of a configuration that replicas use, of the most used resource."""
    amounts = [(amount, chosen.supply.get(kind, 0)) for kind, amount in request.items()]
    return max([0.0, *(amount * one.replicas / supply for amount, supply in amounts if supply)])


def _said(column: Column) -> tuple[str, list[tuple[str, int]]]:
    """Without scores: other scores change nothing on the cluster."""
    return column.policy, sorted((one.workload, one.replicas) for one in column.blocks)


def _moves(now: PlanView, plan: Plan) -> list[Move]:
    before, after = _places(now), _places(plan.placed)
    reasons = {one.workload: one for one in plan.explanation}
    unplaced = {one.workload: one for one in plan.unplaced}
    found = []
    for name in sorted(before.keys() | after.keys() | reasons.keys() | unplaced.keys()):
        old, new, rest, reason = before.get(name, []), after.get(name, []), unplaced.get(name), reasons.get(name)
        found.append(
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
    return found


def _places(plan: PlanView) -> dict[str, list[Place]]:
    found: dict[str, list[Place]] = defaultdict(list)
    for one in plan.assignments:
        found[one.workload].append(
            Place(cluster=one.cluster, device=one.device, replicas=one.replicas, score=one.score)
        )
    return found


def _change(old: list[Place], new: list[Place]) -> Change:
    if not new:
        return "is taken away" if old else "is nowhere"
    if not old:
        return "is placed"
    return "stays" if _where(old) == _where(new) else "moves"


def _where(places: list[Place]) -> Counter[tuple[str, str]]:
    return Counter({(one.cluster, one.device): one.replicas for one in places})


def _option(reason: ExplanationView | None) -> str:
    if reason is None or reason.next_best is None:
        return ""
    option = reason.next_best
    return f"{option.cluster} with {option.device} ({option.score:g})"
