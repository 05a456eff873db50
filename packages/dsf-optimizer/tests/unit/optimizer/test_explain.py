"""Explanations of the places of workloads."""

from __future__ import annotations

import pytest

from dsf.optimizer.model import Cluster, Configuration, PlanInput, Preference, ScoreTable, SearchLimits, Workload
from dsf.optimizer.plan import Plan
from dsf.optimizer.solve import solve
from dsf.optimizer.table import make_table
from dsf.optimizer.views import ExplanationView, OptionView, Reason

from .bruteforce import random_problem

DEVICES = {"all": 1, "half": 2}


def solved_plan(scores: dict[str, dict[str, int]], sizes: dict[str, int]) -> Plan:
    clusters = tuple(
        Cluster(
            name,
            tuple(Configuration(f"p-{device}", device, {"gpu": amount}) for device, amount in DEVICES.items()),
            (ScoreTable("s", items),),
        )
        for name, items in scores.items()
    )
    workloads = tuple(Workload(name, name, {"gpu": size}) for name, size in sizes.items())
    return solve(PlanInput(workloads, clusters, (Preference("s"),)))


def explanation_of(plan: Plan, name: str) -> ExplanationView:
    return next(explanation for explanation in plan.explanation if explanation.workload == name)


def option(cluster: str, device: str, score: float) -> OptionView:
    return OptionView(cluster=cluster, device=device, score=score)


def test_explanation_names_a_better_option_under_another_configuration() -> None:
    plan = solved_plan({"c1": {"a;all": 50, "a;half": 45, "b;all": 10, "b;half": 40}}, {"a": 1, "b": 1})
    assert explanation_of(plan, "a") == ExplanationView(
        workload="a",
        chosen=[option("c1", "half", 45.0)],
        next_best=option("c1", "all", 50.0),
        reason=Reason.CONFIGURATION,
        message="c1 is set up with half for b",
    )
    assert (explanation_of(plan, "b").reason, explanation_of(plan, "b").message) == (
        Reason.LOWER_SCORE,
        "scores 30 less",
    )


def test_explanation_names_workloads_that_take_the_capacity() -> None:
    plan = solved_plan(
        {"c1": {"a;half": 50, "b;half": 60, "c;half": 60}, "c2": {"a;all": 10}}, {"a": 1, "b": 1, "c": 1}
    )
    assert explanation_of(plan, "a").next_best == option("c1", "half", 50.0)
    assert explanation_of(plan, "a").reason is Reason.CAPACITY
    assert explanation_of(plan, "a").message == "gpu of c1 (2) is taken by b, c; 1 needed"


def test_too_large_for_what_scores_more() -> None:
    plan = solved_plan({"c1": {"a;all": 80, "a;half": 20}}, {"a": 2})
    assert explanation_of(plan, "a").next_best == option("c1", "all", 80.0)
    assert (explanation_of(plan, "a").reason, explanation_of(plan, "a").message) == (
        Reason.TOO_LARGE,
        "supplies 1 of gpu; 2 needed",
    )


def test_explanation_prefers_a_possible_option_to_an_impossible_one() -> None:
    plan = solved_plan({"c1": {"a;all": 80, "a;half": 20}, "c2": {"a;half": 10}}, {"a": 2})
    assert explanation_of(plan, "a").next_best == option("c2", "half", 10.0)
    assert (explanation_of(plan, "a").reason, explanation_of(plan, "a").message) == (
        Reason.LOWER_SCORE,
        "scores 10 less",
    )


def test_explanations_of_drawn_problems_hold() -> None:
    for seed in range(60):
        problem = random_problem(seed)
        table = make_table(problem)
        rows = {workload.name: row for row, workload in enumerate(table.workloads)}
        options = [
            (table.clusters[table.cluster_of[column]], configuration.device)
            for column, configuration in enumerate(table.configurations)
        ]
        for explanation in solve(problem).explanation:
            assert "scores 0 " not in explanation.message
            refused_options = table.refusal_codes[rows[explanation.workload]]
            usable = [option for column, option in enumerate(options) if not refused_options[column]]
            if len(usable) > len(explanation.chosen):
                assert explanation.next_best is not None
                assert (explanation.next_best.cluster, explanation.next_best.device) in usable


def test_equal_options_are_a_tie() -> None:
    plan = solved_plan({"c1": {"a;all": 5}, "c2": {"a;all": 5}}, {"a": 1})
    assert (explanation_of(plan, "a").reason, explanation_of(plan, "a").message) == (Reason.TIE, "is worth the same")
    assert explanation_of(plan, "a").next_best == option("c2", "all", 5.0)


def test_single_option_has_no_alternative() -> None:
    clusters = (Cluster("c1", (Configuration("p", "all", {"gpu": 1}),), (ScoreTable("s", {"a;all": 5}),)),)
    plan = solve(PlanInput((Workload("a", "a", {"gpu": 1}),), clusters, (Preference("s"),)))
    assert (plan.explanation[0].reason, plan.explanation[0].message) == (
        Reason.NO_CONFIGURATION,
        "there is no other option",
    )


@pytest.mark.parametrize(
    ("scores", "reason", "message"),
    [
        (
            {"c1": {"a;half": 5, "b;half": 50, "c;half": 50}},
            Reason.CAPACITY,
            "best option left is c1 with half (5): gpu of c1 (2) is taken by b, c; 1 needed",
        ),
        (
            {"c1": {"a;all": 5, "b;half": 50, "c;half": 50}},
            Reason.CONFIGURATION,
            "best option left is c1 with all (5): c1 is set up with half for b, c",
        ),
        ({"c1": {"b;half": 50, "c;half": 50}}, Reason.NO_SCORE, "no cluster has a score of app a"),
        (
            {"c1": {"a;half": -5, "b;half": 50, "c;half": 50}},
            Reason.NEGATIVE,
            "its scores, weighted, are below zero wherever it fits: placing it would lower the sum",
        ),
    ],
)
def test_unplaced(scores: dict[str, dict[str, int]], reason: Reason, message: str) -> None:
    plan = solved_plan(scores, {"a": 1, "b": 1, "c": 1})
    assert [(unplaced.workload, unplaced.reason, unplaced.message) for unplaced in plan.unplaced] == [
        ("a", reason, message)
    ]


def test_early_stopped_search_claims_no_reason() -> None:
    clusters = tuple(
        Cluster(
            f"c{number}",
            (Configuration("p", "all", {"gpu": 1}),),
            (ScoreTable("s", {f"w{other}": (number * other) % 7 for other in range(9)}),),
        )
        for number in range(9)
    )
    workloads = tuple(Workload(f"w{number}", f"w{number}", {"gpu": 1}) for number in range(9))
    problem = PlanInput(workloads, clusters, (Preference("s", 1, "${app}"),))
    best = solve(problem)
    early = solve(problem, SearchLimits(time_limit=1e-6))
    assert early.objective <= best.objective <= early.bound
    assert all(explanation.message for explanation in early.explanation)
