"""A hub process on a real API server: every change takes effect at once. The next resync is ten minutes away."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from dsf import keys
from dsf.api.types import API_VERSION, CREDENTIALS_WORK_NAME, MANIFESTWORK_NAME
from dsf.cli.statusreport import StatusReport, read_report
from dsf.hub.clusters import MAX_DELIVERY_WAIT
from dsf.kube.resources import ADDON_PLACEMENT_SCORES, DYNAMIC_SCORERS, MANAGED_CLUSTERS, MANIFEST_WORKS
from dsf.redisacl.rules import cluster_user
from dsf.settings import Settings
from dsf.store.registry import Registry
from tests.integration.hub.kube.hubworld import HubWorld, addon
from tests.integration.hub.world import scoring_api
from tests.support.httpserver import ScriptedServer
from tests.support.manifests import config, scorer


@pytest.fixture
def running(world: HubWorld, api: ScriptedServer) -> HubWorld:
    """A hub that has no cluster yet, with a configuration and the scorer `cpu-scorer`."""
    world.setup(api.url)
    world.hub()
    world.until(lambda: world.status().get("healthStatus") == "Active", 20)
    return world


def _cluster(world: HubWorld) -> str:
    """Return a new cluster to which everything is delivered."""
    name = world.plane.cluster()
    world.until(lambda: world.delivered_scorers(name) == ["cpu-scorer"], 30)
    world.deliver(name)
    world.until(lambda: f"{name}/cpu-scorer" in world.pairs(), 30)
    return name


def test_scorer_applied_with_kubectl_is_distributed_and_explained(running: HubWorld) -> None:
    applied_at = time.monotonic()
    first = running.plane.cluster()
    running.until(lambda: running.delivered_scorers(first) == ["cpu-scorer"], 30)
    # The entry waits for the delivery, unless that takes too long: a tick before it would fail.
    assert running.pairs() == [] or time.monotonic() - applied_at > MAX_DELIVERY_WAIT
    running.deliver(first)
    running.until(lambda: running.pairs() == [f"{first}/cpu-scorer"], 30)
    running.until(lambda: running.condition("Distributed") == ("True", "Distributed"), 30)
    assert running.condition("Healthy") == ("True", "HealthCheckPassed")
    [row] = running.plane.kubectl("get", "dscorer", "-n", running.namespace, "--no-headers").splitlines()
    assert row.split()[:4] == ["cpu-scorer", "Active", "cpu", "30"]
    # Events are written slightly after the changes that they report.
    running.until(lambda: running.events("HealthCheckPassed"), 30)
    described = running.plane.kubectl("describe", "dscorer", "cpu-scorer", "-n", running.namespace)
    assert "all 1 clusters that want it have it" in described
    assert "HealthCheckPassed" in described[described.index("Events:") :]
    running.until(lambda: ((running.config() or {}).get("status") or {}).get("clusters") == 1, 30)


def test_errors_that_only_the_hub_detects_are_reported_in_the_status(
    running: HubWorld, settings_factory: Callable[..., Settings]
) -> None:
    cluster = _cluster(running)
    path = DYNAMIC_SCORERS.path(running.namespace, "cpu-scorer")
    # The API server tells names apart by their case, HTTP does not.
    twice = [{"name": "X-A", "value": "a"}, {"name": "x-a", "value": "b"}]
    running.session.merge(path, {"spec": {"source": {"auth": {"headers": twice}}}})
    for kind in ("ConfigSynced", "Distributed", "Scoring"):
        running.until(lambda kind=kind: running.condition(kind) == ("False", "Invalid"), 10)  # type: ignore[misc]
    assert "headers: a name is there twice" in running.condition_details("Scoring")[2]
    assert {condition["type"] for condition in running.status()["conditions"]} == {
        "ConfigSynced",
        "Distributed",
        "Scoring",
        "Ready",
    }
    running.until(lambda: running.delivered_scorers(cluster) == [], 30)
    # The schedule entry is kept meanwhile.
    assert "until it is mended nothing runs" in running.condition_details("Scoring")[2]
    entry = running.schedule.read_entry(f"{cluster}/cpu-scorer")
    assert entry is not None
    assert not entry.runnable

    def report() -> StatusReport:
        status_report = read_report(running.client, settings_factory(), None)
        assert ("cpu-scorer", "Invalid") in {
            (condition.scorer, condition.reason) for condition in status_report.conditions
        }
        return status_report

    assert not running.until(report).ok
    invalid_authentication = {
        "apiVersion": API_VERSION,
        "kind": "ScoringAuthentication",
        "metadata": {"name": "thanos", "namespace": running.namespace},
        "spec": {"allowedHosts": ["prometheus.test"], "headers": twice},
    }
    running.apply(invalid_authentication)
    auth_by_reference = {"headers": None, "authenticationRef": {"name": "thanos"}}
    running.session.merge(path, {"spec": {"source": {"auth": auth_by_reference}}})
    running.until(lambda: running.condition("ConfigSynced") == ("False", "InvalidAuthentication"), 10)
    assert "'thanos' has mistakes: spec: headers: a name is there twice" in running.condition_details("ConfigSynced")[2]
    running.apply({**invalid_authentication, "spec": {"allowedHosts": ["prometheus.test"], "headers": twice[:1]}})
    running.until(lambda: running.condition("ConfigSynced") == ("True", "Synced"), 10)
    running.until(lambda: running.delivered_scorers(cluster) == ["cpu-scorer"], 10)


def test_statuses_are_consistent(running: HubWorld) -> None:
    cluster = running.plane.cluster()
    names = [f"score-{number}" for number in range(6)]
    path = DYNAMIC_SCORERS.path(running.namespace)
    version = running.session.get(path)["metadata"]["resourceVersion"]
    with contextlib.ExitStack() as stack:
        for name in names:
            server = stack.enter_context(scoring_api(name))
            running.session.create(path, scorer(running.namespace, name, configURL=f"{server.url}/config"))
        running.until(lambda: running.delivered_scorers(cluster) == ["cpu-scorer", *names], 10)
        running.until(lambda: all(running.status(name).get("healthStatus") == "Active" for name in names), 30)
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "1"}
        observed_objects = [event["object"] for event in running.session.watch(path, query, read_timeout=300)]
    statuses = [
        scorer_object["status"]
        for scorer_object in observed_objects
        if scorer_object["metadata"]["name"] in names and "status" in scorer_object
    ]
    assert len(statuses) >= len(names)
    for status in statuses:
        synced = {condition["status"] for condition in status["conditions"] if condition["type"] == "ConfigSynced"}
        is_active = status["healthStatus"] == "Active"
        has_name = bool(status.get("scoreName"))
        assert (is_active, synced, has_name) in ((True, {"True"}, True), (False, {"Unknown"}, False)), status


def test_added_and_removed_clusters_are_followed_and_edited_works_repaired_at_once(running: HubWorld) -> None:
    waiting = running.plane.cluster(accepted=False)
    other = _cluster(running)
    assert running.work(waiting) is None
    for work in (MANIFESTWORK_NAME, CREDENTIALS_WORK_NAME):
        path = MANIFEST_WORKS.path(other, work)
        original_spec = running.session.get(path)["spec"]
        running.session.merge(path, {"spec": {"workload": {"manifests": []}}})
        running.until(
            lambda path=path, expected_spec=original_spec: running.session.get(path)["spec"] == expected_spec, 30
        )
        running.session.merge(path, {"metadata": {"labels": None}})
        running.until(lambda path=path: running.session.get(path)["metadata"].get("labels"), 30)
        running.session.delete(path)
        running.until(
            lambda work=work, expected_spec=original_spec: (
                (running.object(MANIFEST_WORKS, other, work) or {}).get("spec") == expected_spec
            ),
            3,
        )
    path = MANAGED_CLUSTERS.path(name=waiting)
    running.session.merge(path, {"spec": {"hubAcceptsClient": True}})
    running.until(lambda: running.delivered_scorers(waiting) == ["cpu-scorer"], 30)
    credentials = MANIFEST_WORKS.path(waiting, CREDENTIALS_WORK_NAME)
    assert running.session.get(credentials)
    running.session.merge(path, {"spec": {"hubAcceptsClient": False}})
    running.until(lambda: running.work(waiting) is None, 30)
    running.until(lambda: running.object(MANIFEST_WORKS, waiting, CREDENTIALS_WORK_NAME) is None, 30)
    running.session.delete(MANAGED_CLUSTERS.path(name=other))
    running.until(lambda: running.pairs() == [], 30)
    running.until(lambda: running.work(other) is None, 30)


def test_renamed_scorer_replaces_its_predecessor(running: HubWorld, api: ScriptedServer) -> None:
    name = _cluster(running)
    running.results()
    assert running.send(name, 42.0) == "ok"
    running.until(lambda: running.score(name) == [42], 15)
    running.session.delete(DYNAMIC_SCORERS.path(running.namespace, "cpu-scorer"))
    running.apply(scorer(running.namespace, "renamed", configURL=f"{api.url}/config"))
    running.until(lambda: running.delivered_scorers(name) == ["renamed"], 30)
    running.deliver(name)
    running.until(lambda: running.pairs() == [f"{name}/renamed"], 30)
    running.until(lambda: running.condition("Distributed", "renamed")[0] == "True", 30)
    running.until(lambda: "cpu-scorer" not in running.client.hgetall("dsf:scorers"), 30)
    assert running.send(name, 43.0) == "stale"
    assert running.send(name, 44.0, "renamed") == "ok"
    running.until(lambda: running.score(name) == [44], 30)
    label = "dynamic-scoring.open-cluster-management.io/scorer-name"

    def is_the_new_ones() -> bool:
        # The values are written first, the labels in a request after that. The old one's removal may come between or
        # even after it: then the hub has the new one's written again.
        score_object = running.object(ADDON_PLACEMENT_SCORES, name, "cpu")
        return (
            score_object is not None
            and score_object["metadata"]["labels"][label] == "renamed"
            and running.score(name) == [44]
        )

    running.until(is_the_new_ones, 10)


def test_ticks_go_to_clusters_with_the_add_on_and_a_flapping_add_on_keeps_its_data(
    world: HubWorld, api: ScriptedServer
) -> None:
    name, other = world.setup(api.url, "flapping", "without")
    world.apply(addon(name))
    world.hub(addon_mode=True, departure_grace=300, redis_manage_users=True, hub_resync=1)
    world.results()
    world.until(lambda: world.pairs() == [f"{name}/cpu-scorer"], 20)
    assert world.send(name, 42.0) == "ok"
    world.until(lambda: world.score(name) == [42], 15)
    record = Registry(world.client).read_clusters()[name]
    uid = world.session.get(ADDON_PLACEMENT_SCORES.path(name, "cpu"))["metadata"]["uid"]
    world.plane.kubectl("delete", "managedclusteraddon", "-n", name, "--all", "--wait=false")
    world.until(lambda: world.work(name) is None, 30)
    world.until(lambda: not world.schedule.read_entries()[0].runnable, 30)
    # Periodic resyncs keep its Redis user too.
    user = cluster_user(name)
    assert world.client.execute_command("ACL", "DELUSER", user) == 1
    world.until(lambda: world.client.acl_getuser(user) is not None, 10)
    # A cycle that was running then is counted, and its score is written when the add-on is back.
    assert world.send(name, 43.0) == "ok"
    world.apply(addon(name))
    world.until(lambda: world.score(name) == [43], 30)
    world.until(lambda: world.delivered_scorers(name) == ["cpu-scorer"], 30)
    world.until(lambda: world.schedule.read_entries()[0].runnable, 30)
    assert Registry(world.client).read_clusters()[name] == record
    assert world.session.get(ADDON_PLACEMENT_SCORES.path(name, "cpu"))["metadata"]["uid"] == uid
    assert world.send(name, 44.0) == "ok"
    assert world.client.hget(keys.pair_key(name, "cpu-scorer"), "n:ok") == "3"
    assert world.work(other) is None
    world.apply(addon(other))
    world.until(lambda: world.pairs() == [f"{name}/cpu-scorer", f"{other}/cpu-scorer"], 30)
    world.client.execute_command("ACL", "DELUSER", user)


def test_edited_scores_are_repaired_and_the_end_of_the_configuration_leaves_nothing(
    running: HubWorld,
) -> None:
    name = _cluster(running)
    running.results()
    assert running.send(name, 42.0) == "ok"
    running.until(lambda: running.score(name) == [42], 15)
    path = ADDON_PLACEMENT_SCORES.path(name, "cpu")
    [item] = running.session.get(path)["status"]["scores"]
    edited = [{**item, "value": -1}]
    # Two times, because the first edit is the first change that the hub learns of.
    for _ in range(2):
        running.session.merge(path + "/status", {"status": {"scores": edited}})
        running.until(lambda: running.score(name) == [42], 30)
    running.session.delete(path)
    running.until(lambda: running.score(name) == [42], 30)
    # Two that no writer knows of.
    labels = running.session.get(ADDON_PLACEMENT_SCORES.path(name, "cpu"))["metadata"]["labels"]
    for orphan in ("orphan-1", "orphan-2"):
        body = {
            "apiVersion": ADDON_PLACEMENT_SCORES.api_version,
            "kind": ADDON_PLACEMENT_SCORES.kind,
            "metadata": {"name": orphan, "labels": labels},
        }
        running.session.create(ADDON_PLACEMENT_SCORES.path(name), body)
    running.plane.kubectl("delete", "dscfg", "--all", "-n", running.namespace, "--timeout=50s")
    running.until(lambda: running.session.get(ADDON_PLACEMENT_SCORES.path())["items"] == [], 30)
    running.until(lambda: running.pairs() == [], 30)

    def works() -> list[str]:
        return [work["metadata"]["name"] for work in running.session.get(MANIFEST_WORKS.path())["items"]]

    running.until(lambda: works() == [CREDENTIALS_WORK_NAME], 30)
    running.until(lambda: running.condition("Distributed") == ("False", "NoScoringConfig"), 30)
    running.apply(config(running.namespace))
    running.until(lambda: running.delivered_scorers(name) == ["cpu-scorer"], 30)
