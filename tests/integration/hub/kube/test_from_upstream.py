"""A hub that takes over from the upstream project's manager, and objects that finalizers keep."""

from __future__ import annotations

import json
from collections.abc import Callable

from dsf import keys
from dsf.api.types import TERMINATING
from dsf.cli.statusreport import read_report
from dsf.hub import uninstall
from dsf.kube.resources import DYNAMIC_SCORERS, DYNAMIC_SCORING_CONFIGS, MANIFEST_WORKS
from dsf.settings import Settings
from tests.integration.hub.kube.hubworld import HubWorld
from tests.support import upstream
from tests.support.commandline import dsf
from tests.support.httpserver import ScriptedServer
from tests.support.manifests import config, scorer

FOREIGN = "example.com/guard"


def _scorer(world: HubWorld, url: str) -> None:
    world.apply(scorer(world.namespace, "cpu-scorer", configURL=f"{url}/config"))


def test_configuration_with_upstreams_finalizer_is_deleted_at_once(world: HubWorld, api: ScriptedServer) -> None:
    cluster = world.plane.cluster()
    elsewhere = world.plane.namespace("dynamic-scoring")
    _scorer(world, api.url)
    for namespace in (world.namespace, elsewhere):
        upstream.create_config(world.session, namespace)
    upstream.create_work(world.session, cluster)
    world.hub()
    world.until(lambda: world.delivered_scorers(cluster) == ["cpu-scorer"], 30)
    # While they live, so that no later deletion depends on a running hub.
    for namespace in (world.namespace, elsewhere):
        path = DYNAMIC_SCORING_CONFIGS.path(namespace, "dynamic-scoring-config")
        world.until(lambda path=path: not world.session.get(path)["metadata"].get("finalizers"), 10)
    world.plane.kubectl("delete", "dscfg", "--all", "-n", world.namespace, "--timeout=20s")
    world.until(lambda: world.work(cluster) is None, 30)


def test_configuration_deleted_before_the_migration_is_removed_with_upstreams_works(
    world: HubWorld, api: ScriptedServer
) -> None:
    clusters = [world.plane.cluster(), world.plane.cluster()]
    _scorer(world, api.url)
    upstream.create_config(world.session, world.namespace)
    for cluster in clusters:
        upstream.create_work(world.session, cluster, {"name": "old"})
    world.session.delete(world.config_path)
    world.hub()
    world.until(lambda: world.config() is None, 30)
    world.until(lambda: all(world.work(cluster) is None for cluster in clusters), 30)
    # The same manifest counts again, because it is a new object.
    world.apply(config(world.namespace))
    world.until(lambda: all(world.delivered_scorers(cluster) == ["cpu-scorer"] for cluster in clusters), 30)


def test_objects_kept_by_a_foreign_finalizer_are_reported_as_terminating(
    world: HubWorld, api: ScriptedServer, settings_factory: Callable[..., Settings]
) -> None:
    [cluster] = world.setup(api.url, "one")
    world.hub()
    world.until(lambda: world.delivered_scorers(cluster) == ["cpu-scorer"], 30)
    path = DYNAMIC_SCORERS.path(world.namespace, "cpu-scorer")
    world.session.merge(path, {"metadata": {"finalizers": [FOREIGN]}})
    world.plane.kubectl("delete", "dynamicscorer", "cpu-scorer", "-n", world.namespace, "--wait=false")
    world.until(lambda: world.delivered_scorers(cluster) == [], 30)
    for kind in ("Distributed", "Scoring", "Ready"):
        world.until(lambda kind=kind: world.condition(kind) == ("False", TERMINATING), 30)
    assert FOREIGN in world.condition_details("Ready")[2]
    settings = settings_factory(**world.settings)

    def lines() -> list[str]:
        report = read_report(world.client, settings, None)
        assert not report.ok
        return [condition.message for condition in report.conditions if condition.reason == TERMINATING]

    world.until(lines, 10)
    assert FOREIGN in lines()[0]
    world.session.merge(path, {"metadata": {"finalizers": None}})
    world.until(lambda: not world.client.hgetall(keys.SCORER_NOTICES), 30)

    _scorer(world, api.url)
    world.until(lambda: world.delivered_scorers(cluster) == ["cpu-scorer"], 30)
    world.session.merge(world.config_path, {"metadata": {"finalizers": [FOREIGN]}})
    world.session.delete(world.config_path)
    world.until(lambda: world.condition("Distributed") == ("False", "NoScoringConfig"), 30)
    assert "it is being deleted since" in world.condition_details("Distributed")[2]
    assert world.condition("Ready") == ("False", "NoScoringConfig")

    def reasons() -> dict[str, str]:
        status = (world.config() or {}).get("status") or {}
        return {condition["type"]: condition["reason"] for condition in status.get("conditions", ())}

    world.until(lambda: reasons() == {"Distributed": TERMINATING, "Ready": TERMINATING}, 30)
    world.session.merge(world.config_path, {"metadata": {"finalizers": None}})
    world.apply(config(world.namespace))
    world.until(lambda: world.delivered_scorers(cluster) == ["cpu-scorer"], 30)


def test_leaving_removes_upstreams_finalizer_without_a_running_hub(world: HubWorld) -> None:
    upstream.create_config(world.session, world.namespace)
    world.session.delete(world.config_path)
    uninstall.remove_hub_objects(world.session, world.namespace, timeout_seconds=10)
    assert world.config() is None
    assert world.items(MANIFEST_WORKS) == []


def test_check_of_a_running_upstream_hub_names_blocking_objects(world: HubWorld) -> None:
    cluster, elsewhere = world.plane.cluster(), world.plane.namespace("dynamic-scoring")
    upstream.create_config(world.session, world.namespace)
    upstream.create_config(world.session, elsewhere, masks=[{"clusterName": cluster, "scoreName": "cpu"}])
    upstream.create_score(world.session, cluster, "gone", a=1)
    world.apply(scorer(elsewhere, "away"))
    result = dsf("migrate", "--check", "--kubeconfig", str(world.plane.kubeconfig), "-n", world.namespace, "-o", "json")
    assert result.exit_code == 1
    # Blocking findings come first.
    findings = {finding["object"]: finding for finding in reversed(json.loads(result.stdout)["findings"])}
    assert findings[f"DynamicScorer {elsewhere}/away"]["severity"] == "stops"
    assert "its masks are lost" in findings[f"DynamicScoringConfig {elsewhere}/dynamic-scoring-config"]["message"]
    assert findings[f"AddOnPlacementScore {cluster}/gone"]["severity"] == "change"
    assert f"DynamicScoringConfig {world.namespace}/dynamic-scoring-config" not in findings
