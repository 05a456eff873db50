"""Scores that belong to a scorer of the desired state, and orphaned scores."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dsf.api.naming import make_label_value
from dsf.api.types import SCORER_NAME_LABEL
from dsf.hub.plan import FleetPlan, make_plan
from dsf.hub.plannedscores import PlannedScores
from tests.unit.hub.builders import cluster, config, scorer

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def _plan(*masks: tuple[str, str], **scorers: Any) -> FleetPlan:
    dynamic_scorers = [scorer("one", score="Score One", **scorers)]
    return make_plan(dynamic_scorers, config(*masks), [cluster("a"), cluster("b", accepted=False)], NOW)


def test_score_belongs_to_its_scorer_by_label_and_by_name() -> None:
    owners = PlannedScores(_plan())
    assert owners.needs_score("a", "one")
    assert owners.find_scorer("a", "score-one") == "one"


@pytest.mark.parametrize(("cluster_name", "label", "name"), [("a", "two", "score-two"), ("b", "one", "score-one")])
def test_score_of_an_unknown_scorer_or_cluster_has_no_owner(cluster_name: str, label: str, name: str) -> None:
    owners = PlannedScores(_plan())
    assert not owners.needs_score(cluster_name, label)
    assert owners.find_scorer(cluster_name, name) is None


def test_masked_score_has_no_owner() -> None:
    owners = PlannedScores(_plan(("a", "Score One")))
    assert not owners.needs_score("a", "one")
    assert owners.find_scorer("a", "score-one") is None


@pytest.mark.parametrize("values", [{"health": "Inactive"}, {"scoring": {}}])
def test_scorer_that_cannot_run_keeps_its_scores(values: dict[str, Any]) -> None:
    assert PlannedScores(_plan(**values)).needs_score("a", "one")


def test_scores_go_with_the_configuration_but_not_with_one_that_is_unreadable() -> None:
    assert not PlannedScores(make_plan([scorer("one", score="Score One")], None, [cluster("a")], NOW)).needs_score(
        "a", "one"
    )
    assert PlannedScores(FleetPlan(is_enabled=False, has_no_config=False)).needs_score("a", "one")


def test_score_on_an_unselected_cluster_has_no_owner() -> None:
    plan = _plan(clusterSelector={"matchLabels": {"env": "prod"}})
    assert not PlannedScores(plan).needs_score("a", "one")


def test_score_of_a_scorer_that_cannot_run_is_kept() -> None:
    params = {"query": 'up{r="${label:region}"}', "range": 60, "step": 15}
    source = {"type": "Prometheus", "host": "http://prometheus.example", "params": params}
    clusters = [cluster("a"), cluster("b", labels={"region": "eu"})]
    plan = make_plan([scorer("one", score="Score One", source=source)], config(), clusters, NOW)
    assert plan.scorers["hub/one"].obstacles.keys() == {"a"}
    assert PlannedScores(plan).needs_score("a", "one")


def test_long_scorer_name_is_recognised_by_its_shortened_label() -> None:
    name = "x" * 100
    plan = make_plan([scorer(name, score="long")], config(), [cluster("a")], NOW)
    assert PlannedScores(plan).needs_score("a", make_label_value(name))
    assert PlannedScores(plan).find_scorer("a", "long") == name


#: When the scorer of `builders` was created, and when this hub first planned it.
CREATED = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
CLAIMED = NOW.timestamp()


def test_planned_scorer_adopts_the_score_of_upstreams_agent() -> None:
    plan = _plan()
    adoption = PlannedScores(plan).plan_adoption("a", "score-one", CLAIMED - 60)
    assert adoption is not None
    body, seconds = adoption
    assert body["metadata"]["labels"][SCORER_NAME_LABEL] == "one"
    assert body["metadata"]["ownerReferences"][0]["uid"] == plan.clusters["a"]
    assert seconds >= 300


def test_refused_scorer_adopts_the_score_of_the_name_in_its_spec() -> None:
    source = {"type": "Prometheus", "host": "http://prometheus.example"}
    plan = _plan(source=source)
    assert plan.scorers["hub/one"].resolved_scorer is None
    assert PlannedScores(plan).plan_adoption("a", "score-one", CLAIMED - 60) is not None


@pytest.mark.parametrize("created", [CREATED - 1, CLAIMED, CLAIMED + 60])
def test_score_from_outside_of_upstreams_time_is_not_adopted(created: float) -> None:
    """Another controller may have written the score, whose name a new DynamicScorer uses."""
    assert PlannedScores(_plan()).plan_adoption("a", "score-one", created) is None


@pytest.mark.parametrize(("cluster_name", "name"), [("b", "score-one"), ("a", "another")])
def test_score_without_a_planned_scorer_is_not_adopted(cluster_name: str, name: str) -> None:
    assert PlannedScores(_plan()).plan_adoption(cluster_name, name, CLAIMED - 60) is None


def test_score_of_a_masked_scorer_is_not_adopted() -> None:
    assert PlannedScores(_plan(("a", "Score One"))).plan_adoption("a", "score-one", CLAIMED - 60) is None
