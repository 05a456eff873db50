"""Which scores a scorer may combine."""

from __future__ import annotations

from typing import Any

import pytest

from dsf.api.scorer import DynamicScorer
from dsf.api.types import HealthStatus
from dsf.hub import composites
from dsf.hub.health import CheckResult, Health, HealthTarget, check
from dsf.hub.plan import FleetPlan, make_plan
from tests.unit.hub.builders import NOW, cluster, config, refusal, scorer, summaries


def expression(name: str, text: str = "1", namespace: str = "hub", **inputs: Any) -> DynamicScorer:
    """Return a scorer with an expression of these inputs: the name of a scorer, or the name and a default."""
    scores = [
        {"scorer": score, "as": variable}
        if isinstance(score, str)
        else {"scorer": score[0], "as": variable, "default": score[1]}
        for variable, score in inputs.items()
    ]
    spec: dict[str, Any] = {"source": {"type": "Scores", "scores": scores}} if scores else {}
    manifest = scorer(name).to_manifest()
    manifest["metadata"]["namespace"] = namespace
    del manifest["spec"]["configURL"], manifest["spec"]["configSyncMode"]
    manifest["spec"] |= {"scoring": {"expression": text, "params": {"name": name, "interval": 30}}, **spec}
    return DynamicScorer.from_manifest(manifest)


def plan(*scorers: DynamicScorer, **labels: str) -> FleetPlan:
    return make_plan(scorers, config(), [cluster("paris", labels=labels)], NOW)


def test_summary_carries_expression_and_inputs() -> None:
    result = plan(scorer("cpu"), expression("mix", "cpu * 2", cpu="cpu"))
    assert refusal(result, "hub/mix") == ("", "")
    (summary,) = (summary for summary in summaries(result, "paris") if summary.name == "mix")
    assert (summary.expression, summary.scoring_endpoint, summary.source_type) == ("cpu * 2", "", "Scores")
    assert summary.scores is not None
    assert [(score.scorer, score.name) for score in summary.scores] == [("cpu", "cpu")]


def test_labels_of_the_cluster_are_delivered_if_the_expression_reads_them() -> None:
    result = plan(expression("price", "double(clusterLabels.price)"), expression("one"), price="12")
    price_summary, constant = sorted(summaries(result, "paris"), key=lambda summary: summary.name, reverse=True)
    assert (price_summary.cluster_labels, constant.cluster_labels) == ({"price": "12"}, None)


def test_wrong_expression_is_delivered_nowhere_and_named_with_its_column() -> None:
    result = plan(expression("wrong", "100 * lats"))
    assert summaries(result, "paris") == []
    reason, message = refusal(result, "hub/wrong")
    assert reason == "ExpressionInvalid"
    assert message.startswith("spec.scoring.expression: column 7: there is no variable 'lats'")


@pytest.mark.parametrize(
    ("scorers", "message"),
    [
        ([expression("a", "x", x="a")], "spec.source.scores: a circle: a -> a"),
        (
            [expression("a", "x", x="b"), expression("b", "x", x="c"), expression("c", "x", x="a")],
            "spec.source.scores: a circle: a -> b -> c -> a",
        ),
        (
            [expression("a", "x", x="gone")],
            "spec.source.scores[as=x]: there is no DynamicScorer 'gone' in namespace 'hub'",
        ),
        (
            [expression("a", "x", x="theirs"), expression("theirs", namespace="team")],
            (
                "spec.source.scores[as=x]: there is no DynamicScorer 'theirs' in namespace 'hub'; the one in namespace "
                "'team' does not count"
            ),
        ),
    ],
)
def test_impossible_inputs_are_refused(scorers: list[DynamicScorer], message: str) -> None:
    assert refusal(plan(*scorers), "hub/a") == ("InputInvalid", message)


def test_scorer_that_reads_a_circle_without_being_part_of_it_is_not_refused() -> None:
    result = plan(expression("a", "x", x="b"), expression("b", "x", x="b"))
    assert refusal(result, "hub/a") == ("", "")
    assert refusal(result, "hub/b")[0] == "InputInvalid"


def test_large_circle_is_named_by_its_first_scorers() -> None:
    ring = [expression(f"s{number:02}", "x", x=f"s{(number + 1) % 20:02}") for number in range(20)]
    expected = "spec.source.scores: a circle of 20 scorers: s00, s01, s02, s03, s04, s05, s06, s07 and 12 more"
    assert {refusal(plan(*ring), f"hub/s{number:02}")[1] for number in (0, 7, 19)} == {expected}


class CountedInputs(dict[str, list[str]]):
    """Inputs that count how often they are read."""

    reads = 0

    def __getitem__(self, key: str) -> list[str]:
        self.reads += 1
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.reads += 1
        return super().get(key, default)


@pytest.mark.parametrize("is_ring", [True, False])
def test_search_for_circles_reads_each_scorer_a_few_times(is_ring: bool) -> None:
    """A namespace may have thousands of scorers that read each other."""
    chain = {f"team/s{number}": [f"team/s{number + 1}"] for number in range(3000)}
    inputs = CountedInputs(chain | {"team/s3000": ["team/s0"] if is_ring else []})
    assert len(composites._find_circles(inputs)) == (3001 if is_ring else 0)
    assert inputs.reads <= 3 * len(inputs)


def test_missing_input_with_a_default_is_accepted() -> None:
    assert refusal(plan(expression("a", "x", x=("gone", -100))), "hub/a") == ("", "")


def test_health_of_an_expression_is_whether_it_compiles() -> None:
    good, wrong = expression("good"), expression("wrong", "1 +")
    target = HealthTarget("", good.spec.config_sync_mode)
    health = Health().apply_check(check(target, timeout=1.0))
    assert health.status is HealthStatus.Active
    result = check(target._replace(expression_error=wrong.spec.expression_error), timeout=1.0)
    assert isinstance(result, CheckResult)
    assert result.health_failure is not None
    assert (result.health_failure.reason, result.health_failure.message) == (
        "ExpressionInvalid",
        "spec.scoring.expression: column 4: expected a value and not 'the end'",
    )
    assert health.reset_checks().apply_check(result).status is HealthStatus.Inactive


def test_manifest_of_an_expression_is_read_as_it_was_written() -> None:
    before = expression("mix", "x", x="cpu")
    manifest = before.to_manifest()
    assert not {"configURL", "configSyncMode"} & manifest["spec"].keys()
    assert DynamicScorer.from_manifest(manifest) == before
