"""Objects with fields of a newer CRD, and plans after single changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from dsf.api.resolve import resolve_for_clusters
from dsf.api.scorer import DynamicScorer
from dsf.api.types import ADDON_NAME, HealthStatus
from dsf.backends.protocol import Kind, Manifest, ObjectKey
from dsf.hub import desiredstate, manifestwork
from dsf.hub import plan as plan_module
from dsf.hub.desiredstate import DesiredState
from dsf.hub.health import Health
from dsf.hub.plan import Differences, FleetPlan
from dsf.hub.scorerplan import CONFIG_MISPLACED
from dsf.process.outage import Outage
from dsf.settings import Settings
from tests.unit.hub.builders import cluster, config, scorer
from tests.unit.hub.objects import Objects


def _desired(store: Objects, settings_factory: Callable[..., Settings], *, addon_mode: bool = False) -> DesiredState:
    settings = settings_factory(namespace="hub", addon_mode=addon_mode)
    return DesiredState(store.backend, settings, Outage("Redis"), lambda key: None, lambda differences, changed: None)


def _authentication(name: str, namespace: str, host: str) -> Manifest:
    return {
        "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
        "kind": "ScoringAuthentication",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"allowedHosts": [host], "tokenSecretRef": {"name": "token", "key": "token"}},
    }


def _spec(manifest: Manifest, **fields: Any) -> Manifest:
    return {**manifest, "spec": {**manifest["spec"], **fields}}


def test_fields_of_a_newer_crd_are_ignored_and_reported_once(settings_factory: Callable[..., Settings]) -> None:
    store = Objects()
    store.put(cluster("a").to_manifest())
    masks = [{"clusterName": "b", "scoreName": "*", "until": "noon"}]
    store.put(_spec(config().to_manifest(), masks=masks, newer=1))
    newer = _spec(scorer("s").to_manifest(), newer={"x": 1})
    newer["status"] = {**newer["status"], "newer": True, "lastSyncedConfig": {"name": "n", "newer": True}}
    store.put(newer)
    desired = _desired(store, settings_factory)
    plan = desired.update()
    assert plan.is_enabled
    assert plan.make_entries("a", {}).keys() == {"s"}
    assert plan.masks.hides("b", "s")
    assert sorted(store.events) == [
        (Kind.SCORER, "UnknownField", "this hub does not know spec.newer; it is ignored"),
        (
            Kind.CONFIG,
            "UnknownField",
            "this hub does not know spec.masks[0].until, spec.newer; they are ignored",
        ),
    ]
    # The field is unchanged.
    assert newer["spec"]["newer"] == {"x": 1}
    store.put(newer)
    assert desired.update().make_entries("a", {}).keys() == {"s"}
    assert len(store.events) == 2


def test_other_errors_are_still_reported(settings_factory: Callable[..., Settings]) -> None:
    store = Objects()
    store.put(config().to_manifest())
    store.put(_spec(scorer("s").to_manifest(), newer=1, description=7))
    desired = _desired(store, settings_factory)
    assert desired.update().unreadable == {"hub/s": "spec.description: 7 is not text"}
    assert desired.get_parse_error(ObjectKey(Kind.SCORER, "hub", "s")) == "spec.description: 7 is not text"


def test_scorer_repaired_during_planning_is_kept(
    settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Objects(config().to_manifest(), cluster("a").to_manifest(), scorer("other").to_manifest())
    key = store.put(_spec(scorer("s").to_manifest(), description=7))
    desired = _desired(store, settings_factory)
    is_scorer_namespace = desired.is_scorer_namespace

    def mended(namespace: str) -> bool:
        store.put(scorer("s").to_manifest())
        assert desired.get_scorer(key) is not None
        return is_scorer_namespace(namespace)

    with monkeypatch.context() as meanwhile:
        # The plan calls this for a scorer that it has read.
        meanwhile.setattr(desired, "is_scorer_namespace", mended)
        assert desired.update().unreadable == {"hub/s": "spec.description: 7 is not text"}
    assert desired.update().make_entries("a", {}).keys() == {"other", "s"}


def test_object_unread_after_an_internal_error_is_read_again(
    settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Objects()
    store.put(config().to_manifest())
    store.put(cluster("a").to_manifest())
    store.put(scorer("s").to_manifest())
    desired = _desired(store, settings_factory)
    with monkeypatch.context() as broken:
        broken.setattr(desiredstate, "read_object", Mock(side_effect=KeyError))
        plan = desired.update()
    assert "KeyError" in plan.unreadable["hub/s"]
    assert desired.update().make_entries("a", {}).keys() == {"s"}


def test_authentication_with_an_unknown_field_is_ignored(settings_factory: Callable[..., Settings]) -> None:
    store = Objects()
    store.put(
        {
            "apiVersion": "dynamic-scoring.open-cluster-management.io/v1alpha1",
            "kind": "ScoringAuthentication",
            "metadata": {"name": "x", "namespace": "hub"},
            "spec": {"newer": 1},
        },
    )
    assert _desired(store, settings_factory).get_authentication("hub", "x") is None


def test_hosted_addon_is_reported_once(settings_factory: Callable[..., Settings]) -> None:
    store = Objects()
    store.put(cluster("a").to_manifest())
    addon: dict[str, Any] = {"kind": "ManagedClusterAddOn", "metadata": {"name": ADDON_NAME, "namespace": "a"}}
    store.put(addon)
    desired = _desired(store, settings_factory, addon_mode=True)
    desired.update()
    assert store.events == []
    addon["metadata"]["annotations"] = {"addon.open-cluster-management.io/hosting-cluster-name": "host"}
    store.put(addon)
    for _ in range(2):
        assert desired.update().clusters.keys() == {"a"}
    assert [(kind, reason) for kind, reason, _ in store.events] == [(Kind.ADDON, "HostedModeNotSupported")]


def test_change_of_one_scorer_recomputes_only_that_scorer(
    settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    worked: list[str] = []

    def counted(module: Any, name: str, label: Callable[[Any], str]) -> None:
        true = getattr(module, name)

        def called(first: Any, *arguments: Any, **keywords: Any) -> Any:
            worked.append(f"{name} {label(first)}")
            return true(first, *arguments, **keywords)

        monkeypatch.setattr(module, name, called)

    counted(plan_module, "resolve_for_clusters", lambda dynamic_scorer: str(dynamic_scorer.metadata.name))
    counted(plan_module, "make_part", lambda summary: str(summary.name))
    fleet = Objects()
    health_by_key: dict[ObjectKey, Health] = {}
    settings = settings_factory(namespace="hub", addon_mode=False)
    affected: list[Differences] = []
    desired = DesiredState(
        fleet.backend, settings, Outage("Redis"), health_by_key.get, lambda differences, _: affected.append(differences)
    )
    fleet.put(cluster("a").to_manifest())
    fleet.put(config().to_manifest())
    manifests = {f"s{number}": scorer(f"s{number}").to_manifest() for number in range(20)}
    keys = {name: fleet.put(manifest) for name, manifest in manifests.items()}
    desired.update()
    assert len(worked) == 40

    def changed(name: str) -> list[str]:
        """Return the computations that a change of the named scorer causes."""
        worked.clear()
        affected.clear()
        plan = desired.update()
        # The result equals that of a new DesiredState.
        count = worked.copy()
        anew = DesiredState(fleet.backend, settings, Outage("Redis"), health_by_key.get, lambda *_: None).update()
        assert plan == anew
        assert affected[0].scorers <= {f"hub/{name}"}
        return count

    # The plan uses only the health of a status, which the hub writes itself.
    status = {"conditions": [], "failures": [], "interval": 30, "healthStatus": "Active"}
    fleet.put({**manifests["s3"], "status": status})
    assert changed("s3") == []
    health_by_key[keys["s4"]] = Health(status=HealthStatus.Inactive, is_checked=True)
    assert changed("s4") == ["resolve_for_clusters s4", "make_part s4"]
    health_by_key[keys["s4"]] = Health(status=HealthStatus.Active, is_checked=True)
    assert changed("s4") == ["resolve_for_clusters s4", "make_part s4"]
    edited = _spec(manifests["s5"], execution={"maxRetries": 7})
    fleet.put({**edited, "metadata": {**edited["metadata"], "generation": 2}})
    assert changed("s5") == ["resolve_for_clusters s5", "make_part s5"]
    fleet.put(scorer("s20").to_manifest())
    assert changed("s20") == ["resolve_for_clusters s20", "make_part s20"]
    del fleet.objects[keys["s6"]]
    assert changed("s6") == []
    assert changed("none") == []
    # An unreadable scorer keeps its schedule until it is deleted.
    fleet.put(_spec(manifests["s7"], description=7))
    for _ in range(2):
        assert changed("s7") == []
        assert affected[0] == Differences(frozenset({"hub/s7"}), frozenset({"a"}))
        fleet.objects.pop(keys["s7"], None)


def test_change_of_an_authentication_recomputes_only_scorers_that_reference_it(
    settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone with the right to write ScoringAuthentications in any namespace could keep the hub planning otherwise."""
    resolved_names: list[str] = []

    def record(dynamic_scorer: DynamicScorer, *arguments: Any) -> Any:
        resolved_names.append(dynamic_scorer.metadata.name)
        return resolve_for_clusters(dynamic_scorer, *arguments)

    monkeypatch.setattr(plan_module, "resolve_for_clusters", record)
    store = Objects(cluster("a").to_manifest(), config().to_manifest())
    auth = {"authenticationRef": {"name": "own"}}
    params = {"query": "up", "range": 60, "step": 10}
    source = {"host": "http://source.test", "auth": auth, "params": params}
    scoring = {"params": {"name": "in-scoring", "interval": 30}, "auth": auth}
    for dynamic_scorer in (
        scorer("plain"),
        scorer("in-source", source=source),
        scorer("in-sources", sources=[{**source, "name": "one", "auth": None}, {**source, "name": "two"}]),
        scorer("in-scoring", scoring=scoring),
    ):
        store.put(dynamic_scorer.to_manifest())
    desired = _desired(store, settings_factory)
    desired.update()
    for name, namespace, expected_names in (
        ("own", "hub", {"in-source", "in-sources", "in-scoring"}),
        ("other", "hub", set()),
        ("own", "elsewhere", set()),
    ):
        for host in ("source.test", "scorer.test", "{"):
            store.put(_authentication(name, namespace, host))
            resolved_names.clear()
            desired.update()
            assert set(resolved_names) == expected_names


def test_scorers_of_a_tenant_cost_little_when_another_namespace_changes(
    settings_factory: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenant's scorers do not all fit into a ManifestWork, and may use some servers only."""
    calls: list[str] = []

    def count(module: Any, name: str) -> None:
        original = getattr(module, name)

        def counted(*arguments: Any, **keywords: Any) -> Any:
            calls.append(name)
            return original(*arguments, **keywords)

        monkeypatch.setattr(module, name, counted)

    count(manifestwork, "find_excluded")
    count(plan_module, "_check_hosts")
    count(plan_module, "decide_names")
    fleet = Objects(config().to_manifest(), *(cluster(f"c{number}").to_manifest() for number in range(5)))
    settings = settings_factory(
        namespace="hub", addon_mode=False, scorer_namespaces=["tenant", "other"], scorer_hosts=["http://scorer.test"]
    )
    affected: list[Differences] = []
    desired = DesiredState(
        fleet.backend, settings, Outage("Redis"), lambda _: None, lambda differences, _: affected.append(differences)
    )
    query = {
        "type": "Prometheus",
        "host": "http://scorer.test",
        "params": {"query": "x" * 14_000, "range": 60, "step": 10},
    }
    for number in range(100):
        fleet.put(scorer(f"t{number}", metadata={"namespace": "tenant"}, source=query).to_manifest())
    fleet.put(scorer("x", metadata={"namespace": "other"}).to_manifest())
    plan = desired.update()
    delivered_scorers = plan.list_running_scorers("c0")
    assert 50 < len(delivered_scorers) < 100
    assert "x" in {running_scorer.name for running_scorer in delivered_scorers}
    assert len(plan.list_scorers_without_room()) == 101 - len(delivered_scorers)
    calls.clear()
    affected.clear()
    fleet.put(scorer("x", interval=60, metadata={"namespace": "other"}).to_manifest())
    new_plan = desired.update()
    # The names were new in the first plan, and are settled now.
    assert sorted(calls) == ["_check_hosts", "decide_names", "find_excluded"]
    assert affected[0].scorers == {"other/x"}
    assert all(new_plan.scorers[key] is plan.scorers[key] for key in plan.scorers.keys() - {"other/x"})
    # All clusters run the same scorers.
    assert all(new_plan.list_running_scorers(name) is new_plan.list_running_scorers("c0") for name in plan.clusters)

    def make_plan_without_cache() -> FleetPlan:
        return DesiredState(fleet.backend, settings, Outage("Redis"), lambda _: None, lambda *_: None).update()

    assert new_plan == make_plan_without_cache()
    calls.clear()
    fleet.put(scorer("x", interval=90, metadata={"namespace": "other"}).to_manifest())
    assert desired.update() == make_plan_without_cache()
    assert calls[:2] == ["_check_hosts", "find_excluded"]
    calls.clear()
    fleet.put(cluster("c5").to_manifest())
    grown_plan = desired.update()
    assert calls == ["find_excluded"]
    assert grown_plan == make_plan_without_cache()
    # The entries of unchanged scorers are not made again.
    entries = grown_plan.make_entries("c5", {})
    fleet.put(scorer("x", interval=60, metadata={"namespace": "other"}).to_manifest())
    new_entries = desired.update().make_entries("c5", entries)
    assert {name for name in entries if new_entries[name] is not entries[name]} == {"x"}
    # A masked cluster has room for others.
    masked_score = delivered_scorers[0].name
    fleet.put(config(("c1", masked_score)).to_manifest())
    masked_plan = desired.update()
    assert len(masked_plan.list_running_scorers("c1")) == len(delivered_scorers)
    names = {running_scorer.name for running_scorer in masked_plan.list_running_scorers("c1")}
    assert masked_score not in names
    assert masked_plan.list_running_scorers("c0") == masked_plan.list_running_scorers("c4") != []
    assert masked_plan == make_plan_without_cache()


def test_keys_queued_before_the_first_plan_are_reconciled_with_it(settings_factory: Callable[..., Settings]) -> None:
    store, changed_keys = Objects(), list[set[ObjectKey]]()
    settings = settings_factory(namespace="hub")
    desired = DesiredState(
        store.backend,
        settings,
        Outage("Redis"),
        lambda key: None,
        lambda differences, changed: changed_keys.append({*changed}),
    )
    score, work = ObjectKey(Kind.SCORE, "c", "s"), ObjectKey(Kind.CLUSTER, "", "gone")
    assert desired.defer_until_planned(score)
    assert desired.defer_until_planned(work)
    desired.update()
    assert changed_keys == [{score, work}]
    assert not desired.defer_until_planned(score)
    desired.update()
    assert changed_keys[1:] == [set()]


def test_configuration_beside_scorers_of_another_namespace_stops_them(
    settings_factory: Callable[..., Settings],
) -> None:
    store = Objects(cluster("a").to_manifest(), config(("b", "x")).to_manifest(), scorer("home").to_manifest())
    for namespace in ("team", "other"):
        store.put(scorer(f"of-{namespace}", metadata={"namespace": namespace}).to_manifest())
    settings = settings_factory(namespace="hub", addon_mode=False, scorer_namespaces=["team", "other"])
    desired = DesiredState(
        store.backend, settings, Outage("Redis"), lambda key: None, lambda differences, changed: None
    )
    everywhere = {"home", "of-team", "of-other"}
    assert desired.update().make_entries("a", {}).keys() == everywhere
    misplaced = config(("a", "*")).to_manifest()
    key = store.put({**misplaced, "metadata": {**misplaced["metadata"], "namespace": "team"}})
    plan = desired.update()
    assert plan.make_entries("a", {}).keys() == {"home", "of-other"}
    obstacle = plan.scorers["team/of-team"].obstacle
    assert obstacle is not None
    assert (obstacle.reason, "add its masks to the one in namespace hub" in obstacle.message) == (
        CONFIG_MISPLACED,
        True,
    )
    # A configuration of another name never applies.
    del store.objects[key]
    store.put({**misplaced, "metadata": {"namespace": "team", "name": "another"}})
    assert desired.update().make_entries("a", {}).keys() == everywhere
