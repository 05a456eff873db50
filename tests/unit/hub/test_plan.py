"""The desired state."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsf.api.meta import format_rfc3339
from dsf.api.scorerule import HoldRule
from dsf.api.scoringconfig import Mask
from dsf.api.summary import ScorerSummary
from dsf.api.urls import TokenHosts
from dsf.hub import plan as plan_module
from dsf.hub.admission import NameRules
from dsf.hub.manifestwork import ScorerPart, make_part
from dsf.hub.plan import FleetPlan, MaskIndex, find_differences, make_plan
from tests.cases import load
from tests.unit.hub.builders import NOW, cluster, config, refusal, scorer, summaries

GONE = {"deletionTimestamp": "2026-01-02T00:00:00Z"}
NAMES = st.sampled_from(["*", "a", "b", "cpu", "mem"])


def names(plan: FleetPlan, cluster_name: str) -> list[str]:
    return [summary.name for summary in summaries(plan, cluster_name)]


def test_summary_requires_accepted_cluster_health_resolution_and_no_mask() -> None:
    plan = make_plan(
        [
            scorer("b-runs"),
            scorer("a-runs"),
            scorer("masked"),
            scorer("inactive", health="Inactive"),
            scorer("unknown", health="Unknown"),
            scorer("unresolved", scoring={}),
            scorer("deleted", metadata=GONE),
        ],
        config(("a", "masked")),
        [cluster("a"), cluster("b"), cluster("no", accepted=False), cluster("going", **GONE)],
        NOW,
    )
    assert names(plan, "a") == ["a-runs", "b-runs"]
    assert names(plan, "b") == ["a-runs", "b-runs", "masked"]
    assert names(plan, "no") == names(plan, "going") == names(plan, "nowhere") == []
    assert dict(plan.clusters) == {"a": "uid-a", "b": "uid-b"}
    assert plan.list_clusters(plan.scorers["hub/masked"]) == ["b"]
    assert plan.masked_pair_count == 1
    assert refusal(plan, "hub/unresolved")[0] == "MissingScoreName"
    assert "deleted" not in plan.list_scorer_names()


def test_scorers_do_not_run_without_a_configuration() -> None:
    for absent in (None, config(**GONE)):
        plan = make_plan([scorer()], absent, [cluster("a")], NOW)
        assert names(plan, "a") == []
        assert plan.make_entries("a", {}) == {}
        assert plan.list_clusters(plan.scorers["hub/s"]) == []
        assert plan.masked_pair_count == 0


def test_older_scorer_keeps_a_contested_name() -> None:
    young, old = scorer("a", score="X y"), scorer("b", score="x-y", created="2025-01-01T00:00:00Z")
    plan = make_plan([young, old], config(), [cluster("c")], NOW)
    assert names(plan, "c") == ["b"]
    assert plan.scorers["hub/a"].record is None
    assert refusal(plan, "hub/a")[0] == "ScoreNameConflict"


def test_execution_is_in_the_record_and_the_entry() -> None:
    execution = {
        "rateLimit": "30/m",
        "validitySeconds": 90,
        "whenFailing": {"failureThreshold": 2, "behavior": "Value", "value": -100},
        "hold": {"minChange": 5, "forSeconds": 60},
        "whenEmpty": {"behavior": "Value", "items": [{"name": "${cluster};pod-a", "value": 5}]},
    }
    plan = make_plan([scorer(execution=execution, scoreDestination="None")], config(), [cluster("c")], NOW)
    record = plan.make_records({})["s"]
    assert (record.rate_limit, record.validity, record.destination) == ("30/m", 90, "None")
    assert record.when_failing.model_dump() == {"failure_threshold": 2, "behavior": "Value", "value": -100}
    assert record.hold == HoldRule(min_change=5, for_seconds=60)
    expected = {"behavior": "Value", "value": None, "items": [{"name": "${cluster};pod-a", "value": 5}]}
    assert record.when_empty.model_dump() == expected
    assert plan.make_entries("c", {})["s"].rate_limit == "30/m"


def test_record_has_the_start_of_a_long_description() -> None:
    plan = make_plan([scorer(description="x" * 1_000_000)], config(), [cluster("c")], NOW)
    assert plan.make_records({})["s"].description == "x" * 1021 + "..."


def test_pauses() -> None:
    annotation = "dynamic-scoring.open-cluster-management.io/paused-until"
    later, earlier = NOW + timedelta(hours=1), NOW - timedelta(hours=1)
    plan = make_plan(
        [
            scorer("paused", metadata={"annotations": {annotation: format_rfc3339(later)}}),
            scorer("over", metadata={"annotations": {annotation: format_rfc3339(earlier)}}),
            scorer("suspended", execution={"suspend": True}),
        ],
        config(),
        [cluster("c")],
        NOW,
    )
    suspensions = {name: (entry.suspended, entry.suspended_until) for name, entry in plan.make_entries("c", {}).items()}
    assert suspensions == {"paused": (True, later.timestamp()), "over": (False, None), "suspended": (True, None)}


def test_blocked_scorer_keeps_its_existing_entry() -> None:
    clusters = [cluster("c")]
    before = make_plan([scorer("s", score="cpu", execution={"rateLimit": "1/s"})], config(), clusters, NOW)
    present, records = before.make_entries("c", {}), before.make_records({})
    for broken in (scorer("s", score="cpu", health="Inactive"), scorer("s", scoring={})):
        plan = make_plan([broken], config(), clusters, NOW)
        assert plan.make_entries("c", {}) == {}
        assert plan.make_entries("c", present) == {"s": present["s"].make_stopped()}
        assert make_plan([broken], config(("c", "cpu")), clusters, NOW).make_entries("c", present) == {}
        assert make_plan([broken], None, clusters, NOW).make_entries("c", present) == {}
        assert make_plan([broken], config(), [], NOW).make_entries("c", present) == {}
        assert set(plan.make_records(records)) == {"s"}
    assert make_plan([], config(), clusters, NOW).make_entries("c", present) == {}
    assert make_plan([], config(), clusters, NOW).make_records(records) == {}


def test_missing_cluster_or_config_suspends_entries_until_it_returns() -> None:
    plan = make_plan([scorer("s")], config(), [cluster("c")], NOW)
    present = plan.make_entries("c", {})
    for reduced_plan in (replace(plan, clusters={}), replace(plan, is_enabled=False, has_no_config=True)):
        stopped_entries = reduced_plan.stop_entries("c", present)
        assert (stopped_entries["s"].runnable, stopped_entries["s"].suspended) == (False, True)
        assert plan.make_entries("c", stopped_entries) == present
    # An unreadable configuration stops the entries, since its masks are unknown.
    unreadable = replace(plan, is_enabled=False, has_no_config=False)
    for before in (present, stopped_entries):
        assert unreadable.stop_entries("c", before) == {"s": present["s"].make_stopped()}


def test_blocked_scorer_can_be_suspended_meanwhile() -> None:
    clusters = [cluster("c")]
    present = make_plan([scorer("s")], config(), clusters, NOW).make_entries("c", {})
    for execution, is_suspended in (({}, False), ({"suspend": True}, True)):
        down = make_plan([scorer("s", health="Inactive", execution=execution)], config(), clusters, NOW)
        present = down.make_entries("c", present)
        assert (present["s"].runnable, present["s"].suspended) == (False, is_suspended)
    rival = scorer("older", score="cpu", created="2020-01-01T00:00:00Z")
    assert set(make_plan([scorer("s", score="cpu"), rival], config(), clusters, NOW).make_entries("c", present)) == {
        "older"
    }


def test_unresolved_scorer_keeps_a_suspended_record() -> None:
    records = make_plan([scorer()], config(), [], NOW).make_records({})
    record = make_plan([scorer(scoring={}, health="Inactive")], config(), [], NOW).make_records(records)["s"]
    assert (record.suspended, record.health, record.interval) == (True, "Inactive", 30)


# The wildcard `*` is specific to this project.
@pytest.mark.parametrize("case", load("masks"))
def test_masks(case: dict[str, Any]) -> None:
    index = MaskIndex(frozenset((cluster, score) for cluster, score in case["masks"]))
    assert index.hides(case["cluster"], case["score"]) is case["expected"]


@given(st.lists(st.tuples(NAMES, NAMES), max_size=4), NAMES, NAMES)
def test_mask_index_agrees_with_the_masks(masks: list[tuple[str, str]], cluster_name: str, score: str) -> None:
    expected = any(
        mask_cluster in ("*", cluster_name) and mask_score in ("*", score) for mask_cluster, mask_score in masks
    )
    mask_list = [Mask(cluster_name=mask_cluster, score_name=mask_score) for mask_cluster, mask_score in masks]
    index = MaskIndex(frozenset((mask.cluster_name or "", mask.score_name) for mask in mask_list))
    assert index.hides(cluster_name, score) == expected


def test_differences() -> None:
    def plan(*scorers: object, masks: tuple[tuple[str, str], ...] = (), clusters: str = "ab") -> FleetPlan:
        return make_plan(scorers, config(*masks), [cluster(name) for name in clusters], NOW)  # type: ignore[arg-type]

    first, second = scorer("one"), scorer("two")
    base = plan(first, second)
    assert find_differences(base, plan(first, second)) == (frozenset(), frozenset())
    # A changed status without effect on the plan is no difference.
    assert find_differences(base, plan(scorer("one", status={"observedGeneration": 9}), second)) == (
        frozenset(),
        frozenset(),
    )
    assert find_differences(base, plan(scorer("one", interval=5), second)) == ({"hub/one"}, {"a", "b"})
    assert find_differences(base, plan(first)) == ({"hub/two"}, {"a", "b"})
    assert find_differences(base, plan(first, second, clusters="abc")) == ({"hub/one", "hub/two"}, {"c"})
    assert find_differences(base, plan(first, second, clusters="a")) == ({"hub/one", "hub/two"}, {"b"})
    assert find_differences(base, plan(first, second, masks=(("x", "y"),))) == ({"hub/one", "hub/two"}, {"a", "b"})
    assert find_differences(FleetPlan(), base) == ({"hub/one", "hub/two"}, {"a", "b"})


def test_cluster_notice_names_masked_scorers_and_the_reason() -> None:
    selective_scorer = scorer("chosen", clusterSelector={"matchLabels": {"env": "prod"}})
    plan = make_plan(
        [scorer("s"), scorer("t"), scorer("u"), selective_scorer],
        config(("a", "s"), ("*", "t")),
        [cluster("a"), cluster("b")],
        NOW,
    )
    assert plan.make_notice("a").absent == {
        "s": "masked on this cluster by the DynamicScoringConfig",
        "t": "masked on all clusters by the DynamicScoringConfig",
        "chosen": "its spec.clusterSelector does not select it",
    }
    assert plan.make_notice("b").absent.keys() == {"t", "chosen"}
    fully_masked_plan = make_plan([scorer("s")], config(("a", "*")), [cluster("a")], NOW)
    assert fully_masked_plan.make_notice("a").absent == {
        "s": "this cluster is masked from all scores by the DynamicScoringConfig"
    }


def test_selective_scorers_are_made_once_for_all_selected_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[str] = []

    def count(summary: ScorerSummary) -> ScorerPart:
        parts.append(summary.name)
        return make_part(summary)

    monkeypatch.setattr(plan_module, "make_part", count)
    selector = {"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["x"]}]}
    scorers = [scorer("s"), scorer("t", metadata={"namespace": "team"}, clusterSelector=selector)]
    clusters = [*(cluster(f"c{number}") for number in range(20)), cluster("other", labels={"zone": "x"})]
    plan = make_plan(scorers, config(), clusters, NOW, names=NameRules(home="hub"))
    assert sorted(parts) == ["s", "t"]
    running_scorers = plan.list_running_scorers("c0")
    assert [running_scorer.name for running_scorer in running_scorers] == ["s", "t"]
    assert all(plan.list_running_scorers(f"c{number}") is running_scorers for number in range(20))
    assert [running_scorer.name for running_scorer in plan.list_running_scorers("other")] == ["s"]
    assert plan.list_clusters(plan.scorers["team/t"]) == sorted(f"c{number}" for number in range(20))
    assert plan.make_notice("other").absent.keys() == {"t"}
    assert plan.make_notice("c0").absent == {}


@pytest.mark.parametrize(
    ("host", "zones", "running"),
    [
        ("http://${label:zone}.test", "abc", "bc"),
        ("http://a.test", "ab", ""),
        ("http://b.test", "ab", "ab"),
    ],
)
def test_servers_that_are_not_allowed_stop_a_scorer_only_on_clusters_that_use_them(
    host: str, zones: str, running: str
) -> None:
    selector = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [*zones]}]}
    source = {"type": "Prometheus", "host": host, "params": {"query": "up", "range": 60, "step": 10}}
    clusters = [cluster(zone, labels={"zone": zone}) for zone in "abc"]
    for spec in ({"clusterSelector": selector}, {}) if zones == "abc" else ({"clusterSelector": selector},):
        plan = make_plan(
            [scorer("t", metadata={"namespace": "team"}, source=source, **spec)],
            config(),
            clusters,
            NOW,
            names=NameRules(home="hub"),
            scorer_hosts=TokenHosts(["http://scorer.test", "http://b.test", "http://c.test"]),
        )
        assert plan.list_clusters(plan.scorers["team/t"]) == [*running]
        obstacles = plan.scorers["team/t"].obstacles
        assert obstacles.keys() == {*zones} - {*running}
        assert all(obstacle.reason == "HostNotAllowed" for obstacle in obstacles.values())


def test_cluster_notice_has_a_limited_number_of_scorers_of_each_namespace() -> None:
    """A notice for each of thousands of clusters must not have thousands of scorers."""
    selector = {"matchLabels": {"x" * 63: "y" * 63}}
    scorers = [scorer(f"t{number}", metadata={"namespace": "tenant"}, clusterSelector=selector) for number in range(80)]
    scorers += [scorer("own"), scorer("other", metadata={"namespace": "other"})]
    for plan in (
        make_plan(scorers, config(("a", "own"), ("a", "other")), [cluster("a")], NOW),
        make_plan(scorers, config(("a", "*")), [cluster("a")], NOW),
    ):
        absence_reasons = plan.make_notice("a").absent
        assert len(absence_reasons) == 52
        assert {"own", "other"} < absence_reasons.keys()


def test_new_or_relabelled_cluster_is_the_only_one_affected() -> None:
    def plan(b: dict[str, str], *extra_clusters: str, **spec: object) -> FleetPlan:
        clusters = [cluster("a", labels={"env": "prod"}), cluster("b", labels=b), *map(cluster, extra_clusters)]
        return make_plan([scorer("s", **spec), scorer("t")], config(), clusters, NOW)  # type: ignore[arg-type]

    spec = {"clusterSelector": {"matchLabels": {"env": "prod"}}}
    base = plan({}, **spec)
    both = frozenset({"hub/s", "hub/t"})
    assert find_differences(base, plan({}, "c", **spec)) == (both, {"c"})
    assert find_differences(plan({}, "c", **spec), base) == (both, {"c"})
    assert find_differences(base, plan({"env": "prod"}, **spec)) == ({"hub/s"}, {"b"})
    # Only the cluster that ran it so far changes.
    assert find_differences(plan({}), base) == ({"hub/s"}, {"b"})
    assert find_differences(base, plan({})) == ({"hub/s"}, {"b"})


def test_without_a_source_the_endpoint_is_the_host_of_config_url_as_upstreams() -> None:
    [summary] = summaries(make_plan([scorer("s")], config(), [cluster("c")], NOW), "c")
    assert (summary.source_type, summary.source_endpoint) == ("None", "http://scorer.test")
