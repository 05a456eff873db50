"""Templates and selectors of clusters: the summaries of each cluster, and reasons for having none."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dsf.api import resolve as resolve_module
from dsf.api.cluster import ManagedCluster
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringconfig import DynamicScoringConfig, Mask
from dsf.hub.conditions import DeliveryCounts, judge_distributed
from dsf.hub.health import Health
from dsf.hub.plan import FleetPlan, make_plan
from dsf.hub.scorerplan import PlanCache
from tests.unit.hub.builders import NOW, cluster, config, refusal, scorer, summaries

EU, US = {"region": "eu", "env": "prod"}, {"region": "us"}


def plan(*clusters: ManagedCluster, masks: list[dict[str, Any]] | None = None, **spec: Any) -> FleetPlan:
    """Plan one scorer on these clusters."""
    whole = DynamicScoringConfig.from_manifest({**config().to_manifest(), "spec": {"masks": masks or []}})
    return make_plan([scorer("s", **spec)], whole, clusters, NOW)


def source(query: str = "up", host: str = "http://prometheus.example", **fields: Any) -> dict[str, Any]:
    """Return a source of type Prometheus."""
    return {"type": "Prometheus", "host": host, "params": {"query": query, "range": 60, "step": 15}, **fields}


def distributed_condition(fleet_plan: FleetPlan) -> tuple[str, str]:
    """Return reason and message of the condition Distributed."""
    (scorer_plan,) = fleet_plan.scorers.values()
    desired = len(fleet_plan.list_clusters(scorer_plan))
    spread = DeliveryCounts(len(fleet_plan.clusters), desired, desired, "hub/config", is_enabled=True)
    statement = judge_distributed(
        scorer_plan, Health(status=scorer_plan.scorer.status.health_status, is_checked=True), spread
    )
    assert statement is not None
    return statement.reason, statement.message


def test_each_cluster_gets_its_own_values() -> None:
    auth = {"headers": [{"name": "X-Scope-OrgID", "value": "${cluster}-${label:region}"}]}
    source_of_cluster = source('up{r="${label:region}"}', "http://prometheus.${label:region}.example", auth=auth)
    fleet_plan = plan(cluster("a", labels=EU), cluster("b", labels=US), source=source_of_cluster)
    (on_a,), (on_b,) = summaries(fleet_plan, "a"), summaries(fleet_plan, "b")
    assert (on_a.source_query, on_b.source_query) == ('up{r="eu"}', 'up{r="us"}')
    assert on_b.source_endpoint == "http://prometheus.us.example/api/v1/query_range"
    assert on_b.source_access is not None
    assert [header.value for header in on_b.source_access.methods.headers] == ["b-us"]
    assert distributed_condition(fleet_plan)[0] == "Distributed"


def test_each_of_several_sources_gets_cluster_values() -> None:
    auth = {"headers": [{"name": "X-Scope-OrgID", "value": "${cluster}"}]}
    other = source('up{r="${label:region}"}', "http://${label:region}.example", auth=auth)
    fleet_plan = plan(
        cluster("a", labels=EU), cluster("b"), sources=[{"name": "x", **source()}, {"name": "y", **other}]
    )
    (on_a,) = summaries(fleet_plan, "a")
    x, y = on_a.each_source
    assert (x.source_query, y.source_query) == ("up", 'up{r="eu"}')
    assert y.source_endpoint == "http://eu.example/api/v1/query_range"
    assert y.source_access is not None
    assert [header.value for header in y.source_access.methods.headers] == ["a"]
    assert distributed_condition(fleet_plan)[0] == "MissingClusterValue"
    assert "spec.sources[y]." in distributed_condition(fleet_plan)[1]


def test_missing_label_excludes_its_cluster_and_is_named() -> None:
    fleet_plan = plan(cluster("a", labels=EU), cluster("b"), cluster("c"), source=source('up{r="${label:region}"}'))
    (scorer_plan,) = fleet_plan.scorers.values()
    assert fleet_plan.list_clusters(scorer_plan) == ["a"]
    assert fleet_plan.make_entries("b", {}) == {}
    reason, message = distributed_condition(fleet_plan)
    assert reason == "MissingClusterValue"
    assert message == (
        "it cannot run on 2 of 3 clusters: b, and 1 more: spec.source.params.query: ManagedCluster 'b' has no label "
        "'region' for ${label:region}"
    )


def test_scorer_reports_a_label_that_no_cluster_has() -> None:
    fleet_plan = plan(cluster("a"), source=source('up{r="${label:region}"}'))
    assert refusal(fleet_plan, "hub/s")[0] == "MissingClusterValue"


def test_templates_without_clusters_are_accepted() -> None:
    fleet_plan = plan(source=source('up{r="${label:region}"}', "https://${label:region}.example"))
    assert refusal(fleet_plan, "hub/s") == ("", "")


@pytest.mark.parametrize("query", ["up", 'up{c="${cluster}"}'])
def test_templates_of_an_outdated_config_are_ignored(query: str) -> None:
    synced = {
        "source": {"host": "http://${label:none}.example", "params": {"query": "${nothing}"}},
        "scoring": {"path": "/${label:none}"},
    }
    stale = scorer("s", status={"lastSyncedConfig": synced}, source=source(query))
    fleet_plan = make_plan([stale], config(), [cluster("a")], NOW)
    (summary,) = summaries(fleet_plan, "a")
    assert summary.source_query == query.replace("${cluster}", "a")
    assert summary.source_endpoint == "http://prometheus.example/api/v1/query_range"


def test_scorer_selector_limits_its_clusters() -> None:
    selector = {"matchExpressions": [{"key": "region", "operator": "NotIn", "values": ["eu"]}]}
    fleet_plan = plan(cluster("a", labels=EU), cluster("b", labels=US), cluster("c"), clusterSelector=selector)
    (scorer_plan,) = fleet_plan.scorers.values()
    assert fleet_plan.list_clusters(scorer_plan) == ["b", "c"]
    assert [name for name in "abc" if summaries(fleet_plan, name)] == ["b", "c"]


def test_empty_selection_is_reported() -> None:
    fleet_plan = plan(cluster("a", labels=EU), clusterSelector={"matchLabels": {"region": "mars"}})
    assert distributed_condition(fleet_plan) == ("NotSelected", "spec.clusterSelector selects none of 1 clusters")


def test_mask_by_labels_excludes_matching_clusters() -> None:
    masks = [{"clusterSelector": {"matchLabels": {"region": "eu"}}, "scoreName": "*"}]
    fleet_plan = plan(cluster("a", labels=EU), cluster("b", labels=US), masks=masks)
    (scorer_plan,) = fleet_plan.scorers.values()
    assert fleet_plan.list_clusters(scorer_plan) == ["b"]


def test_masks_under_their_old_field_name_apply() -> None:
    spec = {"mask": [{"clusterName": "a", "scoreName": "s"}], "masks": [{"clusterName": "b", "scoreName": "s"}]}
    older = DynamicScoringConfig.from_manifest({**config().to_manifest(), "spec": spec})
    fleet_plan = make_plan([scorer("s")], older, [cluster("a"), cluster("b"), cluster("c")], NOW)
    assert [len(fleet_plan.list_running_scorers(name)) for name in "abc"] == [0, 0, 1]


@pytest.mark.parametrize(
    "mask",
    [
        {"scoreName": "x"},
        {"clusterName": "a", "clusterSelector": {"matchLabels": {"a": "b"}}, "scoreName": "x"},
        {"clusterSelector": {}, "scoreName": "x"},
        {"clusterSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}, "scoreName": "x"},
    ],
)
def test_invalid_mask_is_refused(mask: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Mask.model_validate(mask, by_alias=True, by_name=False)


def test_cluster_that_lost_a_label_keeps_its_stopped_entry() -> None:
    source_of_region = source('up{r="${label:region}"}')
    before = plan(cluster("a", labels=EU), cluster("b", labels=US), source=source_of_region)
    after = plan(cluster("a", labels=EU), cluster("b"), source=source_of_region)
    present = before.make_entries("b", {})
    assert after.make_entries("b", present) == {"s": present["s"].make_stopped()}
    assert after.make_entries("b", {}) == {}
    unselected = plan(cluster("b"), clusterSelector={"matchLabels": {"region": "us"}})
    assert unselected.make_entries("b", present) == {}


def test_plan_memory_resolves_only_changed_scorers(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved_queries: list[str] = []
    resolve = resolve_module.resolve

    def counted(dynamic_scorer: DynamicScorer, *arguments: Any) -> Any:
        resolved_queries.append(str(dynamic_scorer.spec.source.params and dynamic_scorer.spec.source.params.query))
        return resolve(dynamic_scorer, *arguments)

    monkeypatch.setattr(resolve_module, "resolve", counted)
    memory = PlanCache()
    query = 'up{c="${cluster}",r="${label:region}"}'
    # Each scorer is also resolved once with a placeholder, to see if clusters differ; "x" lacks the label.
    fleet = [cluster("x"), *(cluster(name, labels=EU) for name in "abc")]
    moved = [*fleet[:3], cluster("c", labels=US)]
    suspended = {"source": source(query), "execution": {"suspend": True}}
    steps: list[tuple[list[ManagedCluster], dict[str, Any], int]] = [
        (fleet, {"source": source(query)}, 5),
        (fleet, {"source": source(query)}, 0),
        ([*fleet, cluster("d", labels=US)], {"source": source(query)}, 2),
        (moved, {"source": source(query)}, 2),
        (fleet[2:], {"source": source(query)}, 2),
        (fleet, suspended, 5),
        ([cluster("x", labels=US), *fleet[1:]], suspended, 2),
        (fleet, {"source": source("sum(" + query + ")")}, 5),
    ]
    for clusters, spec, resolutions in steps:
        resolved_queries.clear()
        fleet_plan = make_plan([scorer("s", **spec)], config(), clusters, NOW, cache=memory)
        assert len(resolved_queries) == resolutions, spec
        assert fleet_plan == plan(*clusters, **spec)
    make_plan([], config(), fleet, NOW, cache=memory)
    resolved_queries.clear()
    make_plan([scorer("s", **steps[-1][1])], config(), fleet, NOW, cache=memory)
    assert len(resolved_queries) == 5
