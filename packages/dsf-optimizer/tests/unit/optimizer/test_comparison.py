"""The changes of a plan for each workload and cluster."""

from __future__ import annotations

from dsf.optimizer import comparison
from dsf.optimizer.plan import Plan
from dsf.optimizer.plans import MAX_ROWS, PlanComparison
from dsf.optimizer.views import PlanReport, PlanView

from .test_explain import solved_plan

SIZES = {"a": 1, "b": 1}


def compare(now: PlanView, plan: Plan) -> PlanComparison:
    report = PlanReport(
        status="Optimal",  # type: ignore[arg-type]
        coverage=plan.coverage,
        objective_value=plan.score_sum,
        output_yaml="",
        plan=plan.placed,
        gap=plan.gap,
        bound=plan.bound,
        plan_id="x",
        namespace="n",
        applied=True,
        seconds=0,
    )
    return comparison.compare(now, plan, report, 0.0)


def plans_before_and_after() -> tuple[Plan, Plan]:
    """Return a plan with both workloads on c1, and a later one for which c2 is better for b."""
    first = solved_plan({"c1": {"a;half": 50, "b;half": 60}, "c2": {"a;all": 1, "b;all": 10}}, SIZES)
    second = solved_plan({"c1": {"a;half": 50, "b;half": 60}, "c2": {"a;all": 1, "b;all": 90}}, SIZES)
    return first, second


def test_comparison_lists_moves_first_with_their_reasons() -> None:
    first, second = plans_before_and_after()
    comparison = compare(first.placed, second)
    assert (comparison.score_now, comparison.score_proposed) == (110, 140)
    b, a = comparison.moves
    assert (b.workload, b.change, a.workload, a.change) == ("b", "moves", "a", "stays")
    assert ([assignment.cluster for assignment in b.now], [assignment.cluster for assignment in b.proposed]) == (
        ["c1"],
        ["c2"],
    )
    assert b.next_best == "c1 with half (60)"
    assert b.why == "scores 30 less"
    assert all(cluster.changes for cluster in comparison.clusters)
    c1, c2 = comparison.clusters
    assert [block.workload for block in c1.now.blocks] == ["b", "a"]
    assert [block.workload for block in c1.proposed.blocks] == ["a"]
    assert (c2.now.policy, c2.proposed.policy, c2.proposed.device) == ("", "p-all", "all")
    assert [(block.share, block.score) for block in c1.now.blocks] == [(0.5, 60), (0.5, 50)]


def test_comparison_handles_first_same_and_empty_plans() -> None:
    first, _ = plans_before_and_after()
    assert {move.change for move in compare(PlanView(), first).moves} == {"is placed"}
    same = compare(first.placed, first)
    assert {move.change for move in same.moves} == {"stays"}
    assert not any(cluster.changes for cluster in same.clusters)
    nothing = solved_plan({"c1": {"a;half": 50}}, {"a": 5, "b": 1})
    changes = {move.workload: move for move in compare(first.placed, nothing).moves}
    assert changes["b"].change == "is taken away"
    assert changes["b"].unplaced == 1
    assert changes["b"].why
    assert compare(PlanView(), nothing).moves[0].change == "is nowhere"


def test_stored_comparison_is_truncated() -> None:
    first, _ = plans_before_and_after()
    comparison = compare(first.placed, first)
    assert (comparison.namespace, comparison.plan_id, comparison.applied, comparison.status) == (
        "n",
        "x",
        True,
        "Optimal",
    )
    stored_comparison = comparison.model_copy(update={"moves": comparison.moves[:1] * (MAX_ROWS + 7)}).limit_rows()
    assert (len(stored_comparison.moves), stored_comparison.more_moves) == (MAX_ROWS, 7)
    assert (
        PlanComparison.model_validate_json(stored_comparison.model_dump_json(by_alias=True)).moves
        == stored_comparison.moves
    )
