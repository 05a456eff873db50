"""Templates and selectors of clusters: what each cluster is told, and why some are told nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dsf.api import variants
from dsf.api.cluster import ManagedCluster
from dsf.api.scorer import DynamicScorer
from dsf.api.scoringconfig import DynamicScoringConfig, Mask
from dsf.hub.conditions import DeliveryCounts, distributed
from dsf.hub.health import Health
from dsf.hub.scorerplan import PlanMemory
from dsf.hub.summaries import FleetPlan, make_plan
from tests.unit.hub.builders import NOW, cluster, config, refusal, scorer, summaries

EU, US = {"region": "eu", "env": "prod"}, {"region": "us"}


def plan(*clusters: ManagedCluster, masks: list[dict[str, Any]] | None = None, **spec: Any) -> FleetPlan:
    """One scorer on these clusters."""
    whole = DynamicScoringConfig.from_manifest({**config().to_manifest(), "spec": {"masks": masks or []}})
    return make_plan([scorer("s", **spec)], whole, clusters, NOW)


def source(query: str = "up", host: str = "http://prometheus.example", **more: Any) -> dict[str, Any]:
    """A source of type Prometheus."""
    return {"type": "Prometheus", "host": host, "params": {"query": query, "range": 60, "step": 15}, **more}


def said(found: FleetPlan) -> tuple[str, str]:
    """Reason and message of the condition Distributed."""
    (one,) = found.scorers.values()
    desired = len(found.clusters_of(one))
    spread = DeliveryCounts(len(found.clusters), desired, desired, "hub/config", is_enabled=True)
    statement = distributed(one, Health(status=one.scorer.status.health_status, is_checked=True), spread)
    assert statement is not None
    return statement.reason, statement.message


def test_each_cluster_gets_its_own_values() -> None:
    auth = {"headers": [{"name": "X-Scope-OrgID", "value": "${cluster}-${label:region}"}]}
    own = source('up{r="${label:region}"}', "http://prometheus.${label:region}.example", auth=auth)
    found = plan(cluster("a", labels=EU), cluster("b", labels=US), source=own)
    (on_a,), (on_b,) = summaries(found, "a"), summaries(found, "b")
    assert (on_a.source_query, on_b.source_query) == ('up{r="eu"}', 'up{r="us"}')
    assert on_b.source_endpoint == "http://prometheus.us.example/api/v1/query_range"
    assert on_b.source_access is not None
    assert [header.value for header in on_b.source_access.methods.headers] == ["b-us"]
    assert said(found)[0] == "Distributed"


def test_each_of_several_sources_gets_them() -> None:
    auth = {"headers": [{"name": "X-Scope-OrgID", "value": "${cluster}"}]}
    other = source('up{r="${label:region}"}', "http://${label:region}.example", auth=auth)
    found = plan(cluster("a", labels=EU), cluster("b"), sources=[{"name": "x", **source()}, {"name": "y", **other}])
    (on_a,) = summaries(found, "a")
    x, y = on_a.each_source
    assert (x.source_query, y.source_query) == ("up", 'up{r="eu"}')
    assert y.source_endpoint == "http://eu.example/api/v1/query_range"
    assert y.source_access is not None
    assert [header.value for header in y.source_access.methods.headers] == ["a"]
    assert said(found)[0] == "MissingClusterValue"
    assert "spec.sources[y]." in said(found)[1]


def test_missing_label_excludes_its_cluster_and_is_named() -> None:
    found = plan(cluster("a", labels=EU), cluster("b"), cluster("c"), source=source('up{r="${label:region}"}'))
    (one,) = found.scorers.values()
    assert found.clusters_of(one) == ["a"]
    assert found.entries("b", {}) == {}
    reason, message = said(found)
    assert reason == "MissingClusterValue"
    assert message == (
        "it cannot run on 2 of 3 clusters: b, and 1 more: spec.source.params.query: ManagedCluster 'b' has no label "
        "'region' for ${label:region}"
    )


def test_where_no_cluster_has_it_the_scorer_says_so() -> None:
    found = plan(cluster("a"), source=source('up{r="${label:region}"}'))
    assert refusal(found, "hub/s")[0] == "MissingClusterValue"


def test_without_clusters_templates_are_no_mistake() -> None:
    found = plan(source=source('up{r="${label:region}"}', "https://${label:region}.example"))
    assert refusal(found, "hub/s") == ("", "")


@pytest.mark.parametrize("query", ["up", 'up{c="${cluster}"}'])
def test_templates_of_a_config_that_counts_no_more_are_not_looked_at(query: str) -> None:
    synced = {
        "source": {"host": "http://${label:none}.example", "params": {"query": "${nothing}"}},
        "scoring": {"path": "/${label:none}"},
    }
    stale = scorer("s", status={"lastSyncedConfig": synced}, source=source(query))
    found = make_plan([stale], config(), [cluster("a")], NOW)
    (told,) = summaries(found, "a")
    assert told.source_query == query.replace("${cluster}", "a")
    assert told.source_endpoint == "http://prometheus.example/api/v1/query_range"


def test_scorer_selector_limits_its_clusters() -> None:
    selector = {"matchExpressions": [{"key": "region", "operator": "NotIn", "values": ["eu"]}]}
    found = plan(cluster("a", labels=EU), cluster("b", labels=US), cluster("c"), clusterSelector=selector)
    (one,) = found.scorers.values()
    assert found.clusters_of(one) == ["b", "c"]
    assert [name for name in "abc" if summaries(found, name)] == ["b", "c"]


def test_empty_selection_is_reported() -> None:
    found = plan(cluster("a", labels=EU), clusterSelector={"matchLabels": {"region": "mars"}})
    assert said(found) == ("NotSelected", "spec.clusterSelector selects none of 1 clusters")


def test_mask_by_labels_excludes_matching_clusters() -> None:
    masks = [{"clusterSelector": {"matchLabels": {"region": "eu"}}, "scoreName": "*"}]
    found = plan(cluster("a", labels=EU), cluster("b", labels=US), masks=masks)
    (one,) = found.scorers.values()
    assert found.clusters_of(one) == ["b"]


def test_the_older_spelling_of_masks_counts() -> None:
    spec = {"mask": [{"clusterName": "a", "scoreName": "s"}], "masks": [{"clusterName": "b", "scoreName": "s"}]}
    older = DynamicScoringConfig.from_manifest({**config().to_manifest(), "spec": spec})
    found = make_plan([scorer("s")], older, [cluster("a"), cluster("b"), cluster("c")], NOW)
    assert [len(found.running(name)) for name in "abc"] == [0, 0, 1]


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
    present = before.entries("b", {})
    assert after.entries("b", present) == {"s": present["s"].stopped()}
    assert after.entries("b", {}) == {}
    unselected = plan(cluster("b"), clusterSelector={"matchLabels": {"region": "us"}})
    assert unselected.entries("b", present) == {}


def test_plan_memory_resolves_only_changed_scorers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    resolve = variants.resolve

    def counted(one: DynamicScorer, *arguments: Any) -> Any:
        asked.append(str(one.spec.source.params and one.spec.source.params.query))
        return resolve(one, *arguments)

    monkeypatch.setattr(variants, "resolve", counted)
    memory = PlanMemory()
    query = 'up{c="${cluster}",r="${label:region}"}'
    # Once each time with a stand-in, which says whether clusters differ; "x" lacks the label.
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
    for clusters, spec, most in steps:
        asked.clear()
        found = make_plan([scorer("s", **spec)], config(), clusters, NOW, memory=memory)
        assert len(asked) == most, spec
        assert found == plan(*clusters, **spec)
    make_plan([], config(), fleet, NOW, memory=memory)
    asked.clear()
    make_plan([scorer("s", **steps[-1][1])], config(), fleet, NOW, memory=memory)
    assert len(asked) == 5
