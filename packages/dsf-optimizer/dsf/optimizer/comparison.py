"""Compares the plan in force with a proposed plan, by workload and cluster. Pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from dsf.optimizer.plan import Plan
from dsf.optimizer.plans import ClusterPlan, MoveKind, PlanBlock, PlanColumn, PlanComparison, PlanMove, PlanPlace
from dsf.optimizer.views import AssignmentView, ConfigurationView, ExplanationView, PlanReport, PlanView


def compare(now: PlanView, plan: Plan, report: PlanReport, at: float) -> PlanComparison:
    """Return the changes that `plan` would make to the plan in force, `now`.

    `report` is the report of `plan`, and `at` the time of the comparison in unix seconds. Changed workloads and
    clusters come first, then the others by name.
    """
    clusters = sorted({configuration.cluster for configuration in (*now.configurations, *plan.configurations)})
    columns_before, columns_after = _make_columns(now, plan.requests), _make_columns(plan.placed, plan.requests)
    changes = []
    for name in clusters:
        old_column, new_column = (
            columns_before.get(name, PlanColumn(cluster=name)),
            columns_after.get(name, PlanColumn(cluster=name)),
        )
        changes.append(
            ClusterPlan(
                cluster=name,
                now=old_column,
                proposed=new_column,
                changes=_drop_scores(old_column) != _drop_scores(new_column),
            )
        )
    moves = _list_moves(now, plan)
    return PlanComparison(
        namespace=report.namespace,
        at=at,
        plan_id=report.plan_id,
        applied=report.applied,
        status=report.status.value,
        gap=report.gap,
        warnings=report.warnings,
        score_now=sum(assignment.score * assignment.replicas for assignment in now.assignments),
        score_proposed=plan.score_sum,
        clusters=sorted(changes, key=lambda change: (not change.changes, change.cluster)),
        moves=sorted(moves, key=lambda move: (move.change == "stays", move.workload)),
    ).limit_rows()


def _make_columns(plan: PlanView, requests: Mapping[str, Mapping[str, int]]) -> dict[str, PlanColumn]:
    assignments_by_cluster: dict[str, list[AssignmentView]] = defaultdict(list)
    for assignment in plan.assignments:
        assignments_by_cluster[assignment.cluster].append(assignment)
    return {
        configuration.cluster: PlanColumn(
            cluster=configuration.cluster,
            policy=configuration.policy,
            device=configuration.device,
            supply=configuration.supply,
            used=configuration.used,
            blocks=[
                PlanBlock(
                    workload=assignment.workload,
                    replicas=assignment.replicas,
                    score=assignment.score,
                    share=compute_share(assignment, configuration, requests.get(assignment.workload) or {}),
                )
                for assignment in sorted(
                    assignments_by_cluster[configuration.cluster],
                    key=lambda assignment: (-assignment.score, assignment.workload),
                )
            ],
        )
        for configuration in plan.configurations
    }


def compute_share(assignment: AssignmentView, configuration: ConfigurationView, request: Mapping[str, int]) -> float:
    """Return the share of a configuration's supply that the replicas use, of the resource that they use most."""
    amounts = [(amount, configuration.supply.get(kind, 0)) for kind, amount in request.items()]
    return max([0.0, *(amount * assignment.replicas / supply for amount, supply in amounts if supply)])


def _drop_scores(column: PlanColumn) -> tuple[str, list[tuple[str, int]]]:
    """Return the policy and the replicas of a column, without scores, which change nothing on the cluster."""
    return column.policy, sorted((block.workload, block.replicas) for block in column.blocks)


def _list_moves(now: PlanView, plan: Plan) -> list[PlanMove]:
    places_before, places_after = _group_by_workload(now), _group_by_workload(plan.placed)
    reasons = {explanation.workload: explanation for explanation in plan.explanation}
    unplaced = {entry.workload: entry for entry in plan.unplaced}
    moves = []
    for name in sorted(places_before.keys() | places_after.keys() | reasons.keys() | unplaced.keys()):
        old_assignments, new_assignments, unplaced_view, reason = (
            places_before.get(name, []),
            places_after.get(name, []),
            unplaced.get(name),
            reasons.get(name),
        )
        moves.append(
            PlanMove(
                workload=name,
                change=_classify_move(old_assignments, new_assignments),
                now=old_assignments,
                proposed=new_assignments,
                unplaced=unplaced_view.replicas if unplaced_view else 0,
                why=unplaced_view.message if unplaced_view else reason.message if reason else "",
                next_best=_format_option(reason),
            )
        )
    return moves


def _group_by_workload(plan: PlanView) -> dict[str, list[PlanPlace]]:
    by_workload: dict[str, list[PlanPlace]] = defaultdict(list)
    for assignment in plan.assignments:
        by_workload[assignment.workload].append(
            PlanPlace(
                cluster=assignment.cluster,
                device=assignment.device,
                replicas=assignment.replicas,
                score=assignment.score,
            )
        )
    return by_workload


def _classify_move(old_assignments: list[PlanPlace], new_assignments: list[PlanPlace]) -> MoveKind:
    if not new_assignments:
        return "is taken away" if old_assignments else "is nowhere"
    if not old_assignments:
        return "is placed"
    return "stays" if _count_replicas(old_assignments) == _count_replicas(new_assignments) else "moves"


def _count_replicas(assignments: list[PlanPlace]) -> Counter[tuple[str, str]]:
    return Counter({(assignment.cluster, assignment.device): assignment.replicas for assignment in assignments})


def _format_option(reason: ExplanationView | None) -> str:
    if reason is None or reason.next_best is None:
        return ""
    option = reason.next_best
    return f"{option.cluster} with {option.device} ({option.score:g})"
