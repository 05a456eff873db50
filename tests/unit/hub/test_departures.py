"""Clusters, add-ons and configurations that are deleted briefly lose no state."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from dsf import keys
from dsf.api.types import (
    ADDON_NAME,
    CREDENTIALS_WORK_NAME,
    MANIFESTWORK_NAME,
    OBSOLETE_FINALIZERS,
    TERMINATING,
    UPSTREAM_FINALIZER,
)
from dsf.backends.protocol import Kind, Manifest, ObjectKey
from dsf.fleet.queries import FleetQueries
from dsf.hub.clusters import ClusterReconciler, DepartedClusters, Departures
from dsf.hub.credentials import AgentCredentials
from dsf.hub.desiredstate import DesiredState
from dsf.hub.registrar import Registrar
from dsf.hub.statusreconcilers import ConfigReconciler
from dsf.process.outage import Outage
from dsf.settings import Settings
from dsf.store.agents import AgentKeys, Agents
from dsf.store.registry import Registry
from dsf.store.schedule import ScheduleStore
from tests.support.memorystore import memory_client
from tests.unit.hub.builders import cluster, config, scorer
from tests.unit.hub.objects import Objects

KEY = ObjectKey(Kind.CLUSTER, "", "c")
PAIR = keys.pair_key("c", "cpu")
GRACE = 300.0


ADDON: Manifest = {"kind": "ManagedClusterAddOn", "metadata": {"name": ADDON_NAME, "namespace": "c"}}


class HubFixture:
    """A cluster with a scorer that has run, and the parts of the hub that serve it."""

    def __init__(self, settings: Settings) -> None:
        self.client = memory_client()
        self.api = Objects(cluster("c").to_manifest(), config().to_manifest(), scorer("cpu").to_manifest(), ADDON)
        self.now = 1000.0
        self.schedule = ScheduleStore(self.client)
        self.registry = Registry(self.client)
        self._settings = settings
        self.start()
        self.reconcile()
        self.client.hset(PAIR, mapping={"n:scheduled": 7, "n:ok": 7})
        self.client.hset(keys.KEYS_USED, "c", 1)

    def start(self) -> None:
        """Start the hub's parts, or restart them without their memory."""
        backend = self.api.backend
        self.checked: list[tuple[str, str]] = []
        self.registrar = Registrar(self.client, Outage("redis"), self.checked.extend)
        self.credentials = AgentCredentials(backend, self.registrar, self.client, self._settings)
        self.credentials.begin(b"m" * 32)
        self.desired = DesiredState(
            backend, self._settings, Outage("Redis"), lambda key: None, lambda differences, changed: None
        )
        self.clusters = ClusterReconciler(
            backend,
            self.registrar,
            self.desired,
            DepartedClusters(backend, self.registrar, self.credentials, Departures(GRACE, lambda: self.now)),
            agent_namespace="agent",
            on_distributed=lambda names: None,
        )

    def reconcile(self) -> float | None:
        """Reconcile the cluster as after an event, without waiting for the delivery."""
        self.registrar.sync_scorers(self.desired.update())
        again = self.clusters.reconcile(KEY)
        self.clusters._delivery_deadlines["c"] = 0.0
        return self.clusters.reconcile(KEY) if again is not None and again <= 2.0 else again

    def runs(self) -> bool | None:
        """True if the pair gets ticks; None if it is forgotten."""
        entry = self.schedule.read_entry("c/cpu")
        return entry.runnable if entry is not None else None

    def key_ids(self) -> tuple[int, ...]:
        record = self.registry.read_clusters().get("c")
        return record.key_ids if record is not None else ()

    def cycles(self) -> str | None:
        return cast("str | None", self.client.hget(PAIR, "n:ok"))

    def has_work(self) -> bool:
        return self.api.get(Kind.WORK, "c", MANIFESTWORK_NAME) is not None


@pytest.fixture
def world(settings_factory: Callable[..., Settings]) -> HubFixture:
    settings = settings_factory(role="hub", namespace="hub", addon_mode=True, redis_manage_users=False)
    fixture = HubFixture(settings)
    assert (fixture.runs(), fixture.key_ids(), fixture.has_work()) == (True, (1,), True)
    return fixture


GONE = pytest.mark.parametrize("kind", [Kind.ADDON, Kind.CLUSTER, Kind.CONFIG])


@GONE
def test_briefly_deleted_objects_lose_no_state(world: HubFixture, kind: Kind) -> None:
    removed_manifest = world.api.take(kind)
    again = world.reconcile()
    assert (world.runs(), world.has_work(), world.cycles(), world.key_ids()) == (False, False, "7", (1,))
    assert again is not None
    assert 0 < again <= GRACE
    # Other reconciliations do not shorten the grace period, and a restart does not end it.
    world.now += GRACE - 1
    world.reconcile()
    world.start()
    world.reconcile()
    assert (world.runs(), world.cycles(), world.key_ids()) == (False, "7", (1,))
    world.api.put(removed_manifest)
    world.reconcile()
    assert (world.runs(), world.has_work(), world.cycles(), world.key_ids()) == (True, True, "7", (1,))


@GONE
def test_deleted_objects_are_forgotten_after_the_grace_period(world: HubFixture, kind: Kind) -> None:
    world.api.take(kind)
    world.reconcile()
    world.now += GRACE
    assert world.reconcile() is None
    assert (world.runs(), world.has_work(), world.cycles()) == (None, False, None)
    assert world.key_ids() == ((1,) if kind is Kind.CONFIG else ())
    assert (world.api.ids is None) == (kind is not Kind.CONFIG)


def test_unaccepted_cluster_loses_all_state_at_once(world: HubFixture) -> None:
    world.api.take(Kind.CLUSTER)
    world.api.put(cluster("c", accepted=False).to_manifest())
    assert world.reconcile() is None
    assert (world.runs(), world.has_work(), world.cycles(), world.key_ids()) == (None, False, None, ())
    assert world.api.ids is None
    # A cluster that is accepted again starts without state.
    world.api.take(Kind.CLUSTER)
    world.api.put(cluster("c").to_manifest())
    world.reconcile()
    assert (world.runs(), world.has_work(), world.cycles()) == (True, True, None)
    assert world.api.ids is not None


@GONE
def test_key_revocation_applies_during_the_grace_period(world: HubFixture, kind: Kind) -> None:
    removed_manifest = world.api.take(kind)
    world.reconcile()
    AgentKeys(world.client).request_credentials("c", "revoke")
    world.credentials.read_requests()
    world.reconcile()
    assert world.key_ids() == (2,)
    assert not world.client.hgetall(keys.KEY_REQUESTS)
    world.api.put(removed_manifest)
    world.reconcile()
    assert world.key_ids() == (2,)
    assert world.api.ids is not None
    assert world.api.ids.valid == (2,)


def test_recreated_cluster_gets_new_keys_that_overlap_with_the_old(world: HubFixture) -> None:
    world.api.take(Kind.CLUSTER)
    world.reconcile()
    world.api.put(cluster("c", uid="another").to_manifest())
    assert world.reconcile() is not None, "the overlap is looked at again"
    assert (world.runs(), world.cycles(), world.key_ids()) == (True, "7", (2, 1))
    assert world.registry.read_clusters()["c"].uid == "another"


def test_scorer_deleted_during_the_grace_period_is_removed_at_once(world: HubFixture) -> None:
    world.schedule.set_override("c/cpu", interval=7)
    world.api.take(Kind.ADDON)
    world.reconcile()
    assert world.schedule.read_overrides()
    world.api.take(Kind.SCORER)
    world.reconcile()
    assert (world.runs(), world.cycles(), world.schedule.read_overrides()) == (None, None, {})
    assert world.key_ids() == (1,)


def _break_manifest(manifest: Manifest) -> Manifest:
    # A newer CRD may allow this value, and an API server without CRD allows any.
    return {**manifest, "spec": {**manifest["spec"], "description": 7}}


def test_unreadable_scorer_keeps_its_state(world: HubFixture) -> None:
    world.schedule.set_override("c/cpu", interval=7)
    readable = world.api.take(Kind.SCORER)
    world.api.put(_break_manifest(readable))
    for _ in range(2):
        world.reconcile()
        assert (world.runs(), world.cycles(), len(world.schedule.read_overrides())) == (False, "7", 1)
        record = world.registry.read_scorers()["cpu"]
        assert (record.suspended, record.health) == (True, "Unknown")
        assert record.problem == "Invalid: spec.description: 7 is not text"
        # A restarted hub, which never read the valid scorer, keeps the state too.
        world.now += 10 * GRACE
        world.start()
    world.api.put(readable)
    world.reconcile()
    assert (world.runs(), world.cycles(), world.registry.read_scorers()["cpu"].problem) == (True, "7", "")


@pytest.mark.parametrize("then", ["delete", "mask", "leave"])
def test_unreadable_scorer_is_removed_like_any_other(world: HubFixture, then: str) -> None:
    world.api.put(_break_manifest(world.api.take(Kind.SCORER)))
    world.reconcile()
    match then:
        case "delete":
            world.api.take(Kind.SCORER)
        case "mask":
            world.api.put(config(("c", "cpu")).to_manifest())
        case "leave":
            world.api.take(Kind.CLUSTER)
            world.reconcile()
            assert (world.runs(), world.cycles()) == (False, "7")
            world.now += GRACE
    world.reconcile()
    assert (world.runs(), world.cycles()) == (None, None)


def test_unreadable_configuration_suspends_without_losing_state(world: HubFixture) -> None:
    readable = world.api.take(Kind.CONFIG)
    world.api.put({**readable, "spec": {"masks": 7}})
    for _ in range(2):
        world.reconcile()
        assert (world.runs(), world.has_work(), world.cycles()) == (False, False, "7")
        # Published scores remain until they expire.
        assert world.registry.read_scorers()["cpu"].destination == "AddOnPlacementScore"
        world.now += 10 * GRACE
    world.api.put(readable)
    world.reconcile()
    assert (world.runs(), world.has_work(), world.cycles()) == (True, True, "7")
    # A deleted cluster loses its state like any other.
    world.api.put({**world.api.take(Kind.CONFIG), "spec": {"masks": 7}})
    world.reconcile()
    world.api.take(Kind.CONFIG)
    world.reconcile()
    assert (world.runs(), world.cycles()) == (False, "7")
    world.now += GRACE
    world.reconcile()
    assert (world.runs(), world.cycles()) == (None, None)


def test_unreadable_configuration_under_deletion_counts_as_deleted(world: HubFixture) -> None:
    """A foreign finalizer keeps the deleted object."""
    manifest = world.api.take(Kind.CONFIG)
    leaving = {**manifest["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.api.put({**manifest, "spec": {"masks": 7}, "metadata": leaving})
    world.reconcile()
    assert (world.runs(), world.has_work()) == (False, False)
    reports: list[None] = []
    reconciler = ConfigReconciler(
        world.api.backend, world.registrar, world.desired, world.clusters, on_no_config=lambda: reports.append(None)
    )
    assert reconciler.reconcile(world.desired.config_key) is None
    assert reports == [None]
    world.now += GRACE
    world.reconcile()
    assert (world.runs(), world.cycles()) == (None, None)


def _config_reconciler(world: HubFixture) -> ConfigReconciler:
    return ConfigReconciler(
        world.api.backend, world.registrar, world.desired, world.clusters, on_no_config=lambda: None
    )


def _give_finalizers(world: HubFixture, *finalizers: str, deleted: bool, namespace: str = "") -> ObjectKey:
    """Store the configuration with these finalizers and return its key."""
    manifest = config().to_manifest() if namespace else world.api.take(Kind.CONFIG)
    metadata = {**manifest["metadata"], "uid": "u", "finalizers": list(finalizers)}
    metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    metadata |= {"namespace": namespace} if namespace else {}
    return world.api.put({**manifest, "metadata": metadata})


def test_upstreams_finalizer_is_removed_after_its_works(world: HubFixture) -> None:
    key = _give_finalizers(world, UPSTREAM_FINALIZER, deleted=True)
    # The upstream manager creates it without the hub's label.
    world.api.put({"kind": "ManifestWork", "metadata": {"namespace": "c", "name": MANIFESTWORK_NAME}})
    reconciler = _config_reconciler(world)
    assert reconciler.reconcile(key) is None
    assert world.api.get(*key) is None
    assert world.api.get(Kind.WORK, "c", MANIFESTWORK_NAME) is None


def test_obsolete_finalizers_of_a_living_configuration_are_removed_once(world: HubFixture) -> None:
    key = _give_finalizers(world, *OBSOLETE_FINALIZERS, "a.example.com/b", deleted=False)
    reconciler = _config_reconciler(world)
    reconciler.reconcile(key)
    assert world.api.objects[key]["metadata"]["finalizers"] == ["a.example.com/b"]
    # A running upstream manager restores its finalizer; the hub does not remove it again.
    _give_finalizers(world, UPSTREAM_FINALIZER, deleted=False)
    reconciler.reconcile(key)
    assert world.api.objects[key]["metadata"]["finalizers"] == [UPSTREAM_FINALIZER]
    _give_finalizers(world, UPSTREAM_FINALIZER, deleted=True)
    reconciler.reconcile(key)
    assert world.api.get(*key) is None


def test_deletion_of_an_ignored_configuration_removes_no_work(world: HubFixture) -> None:
    key = _give_finalizers(world, UPSTREAM_FINALIZER, deleted=True, namespace="elsewhere")
    world.api.put({"kind": "ManifestWork", "metadata": {"namespace": "c", "name": MANIFESTWORK_NAME}})
    _config_reconciler(world).reconcile(key)
    assert world.api.get(*key) is None
    assert world.api.get(Kind.WORK, "c", MANIFESTWORK_NAME) is not None


def test_configuration_that_a_foreign_finalizer_keeps_is_reported_as_terminating(world: HubFixture) -> None:
    key = _give_finalizers(world, UPSTREAM_FINALIZER, "a.example.com/b", deleted=True)
    world.reconcile()
    _config_reconciler(world).reconcile(key)
    conditions = {condition["type"]: condition for condition in world.api.objects[key]["status"]["conditions"]}
    assert {kind: (each["status"], each["reason"]) for kind, each in conditions.items()} == {
        "Distributed": ("False", TERMINATING),
        "Ready": ("False", TERMINATING),
    }
    assert conditions["Ready"]["message"] == (
        "it is being deleted since 2026-01-01T00:00:00Z and stays until the owners of its finalizers "
        "(a.example.com/b) remove them; a changed manifest has no effect until it is gone: then apply it again; its "
        "masks do not count"
    )
    assert "(a.example.com/b)" in world.desired.config_terminating


def test_scores_of_a_returning_cluster_are_checked(world: HubFixture) -> None:
    removed_manifest = world.api.take(Kind.CLUSTER)
    world.reconcile()
    world.checked.clear()
    world.api.put(removed_manifest)
    world.reconcile()
    assert ("c", "cpu") in world.checked


def test_without_a_configuration_no_score_is_published(world: HubFixture) -> None:
    removed_manifest = world.api.take(Kind.CONFIG)
    world.reconcile()
    assert world.registry.read_scorers()["cpu"].destination == "None"
    assert world.runs() is False
    world.api.put(removed_manifest)
    world.reconcile()
    assert world.registry.read_scorers()["cpu"].destination == "AddOnPlacementScore"


def test_status_names_the_deleted_object_and_the_cause_of_refused_results(world: HubFixture) -> None:
    fleet = FleetQueries(world.client)
    assert (fleet.cluster("c").problem, fleet.pair("c", "cpu").cluster_problem) == ("", "")
    removed_manifest = world.api.take(Kind.ADDON)
    world.reconcile()
    problem = fleet.pair("c", "cpu").cluster_problem
    assert problem.startswith(
        f"its ManagedClusterAddOn {ADDON_NAME} is gone, so nothing runs there; its scores, history"
    )
    assert fleet.cluster("c").problem == problem
    world.api.put(removed_manifest)
    world.reconcile()
    assert fleet.pair("c", "cpu").cluster_problem == ""
    AgentKeys(world.client).request_credentials("c", "revoke")
    world.credentials.read_requests()
    world.reconcile()
    problem = fleet.pair("c", "cpu").cluster_problem
    assert "last seen with the credentials 1, which are withdrawn" in problem
    assert CREDENTIALS_WORK_NAME in problem
    assert Agents(world.client).find_problems(world.registry.read_clusters().values()) == {"c": problem}
    world.client.hset(keys.KEYS_USED, "c", 2)
    assert fleet.pair("c", "cpu").cluster_problem == ""


def test_unknown_cluster_gets_no_entry_and_no_notice(world: HubFixture) -> None:
    world.api.take(Kind.CLUSTER)
    world.clusters.reconcile(ObjectKey(Kind.CLUSTER, "", "stranger"))
    assert "stranger" not in world.registry.read_clusters()
    assert world.client.hget(keys.CLUSTER_NOTICES, "stranger") is None
