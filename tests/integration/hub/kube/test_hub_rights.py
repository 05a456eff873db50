"""The hub controller without one of its rights: log, status and events name the missing one."""

from __future__ import annotations

import signal

from tests.integration.hub.kube.hubworld import HubWorld, has_logged
from tests.integration.hub.kube.rights import HUB, without
from tests.support.httpserver import ScriptedServer


def test_missing_read_permission_is_named_and_its_grant_is_detected(world: HubWorld, api: ScriptedServer) -> None:
    [cluster] = world.setup(api.url, "one")
    plane = world.plane
    limited = plane.service_account(world.namespace, "hub", without(HUB, "scores"))
    hub = world.hub(kubeconfig=limited)
    world.until(lambda: has_logged(hub.log, 'cannot list resource "addonplacementscores"', "RBAC rule"), 20)
    # The hub still waits for its first list, and ends on the signal all the same.
    hub.signal(signal.SIGTERM)
    assert hub.wait() == 0

    hub = world.hub(kubeconfig=limited)
    world.until(lambda: has_logged(hub.log, "cannot watch", 'cannot list resource "addonplacementscores"'), 20)
    plane.set_rules(world.namespace, "hub", list(HUB.values()))
    world.until(lambda: world.status().get("healthStatus") == "Active", 15)
    world.until(lambda: world.delivered_scorers(cluster) == ["cpu-scorer"], 5)


def test_missing_write_permission_is_named_in_the_status(world: HubWorld, api: ScriptedServer) -> None:
    [cluster] = world.setup(api.url, "one")
    limited = world.plane.service_account(world.namespace, "hub", without(HUB, "works", verbs="get list watch"))
    hub = world.hub(kubeconfig=limited)
    expected_message = (
        'cannot patch resource "manifestworks" in API group "work.open-cluster-management.io" '
        f'in the namespace "{cluster}"'
    )

    world.until(lambda: world.condition("Distributed") == ("False", "DistributionRefused"), 20)
    assert expected_message in world.condition_details("Distributed")[2]
    world.until(lambda: has_logged(hub.log, "reconciliation failed", expected_message))
    world.until(lambda: world.events("DistributionRefused"), 5)
    described = world.plane.kubectl("describe", "dscorer", "cpu-scorer", "-n", world.namespace)
    assert expected_message in described[described.index("Events:") :]

    # After the grant it does not wait for the resync, which is ten minutes away.
    world.plane.set_rules(world.namespace, "hub", list(HUB.values()))
    world.until(lambda: world.delivered_scorers(cluster) == ["cpu-scorer"], 30)
    world.deliver(cluster)
    world.until(lambda: world.condition("Distributed") == ("True", "Distributed"), 5)

    world.plane.set_rules(world.namespace, "hub", without(HUB, "score statuses"))
    world.results()
    assert world.send(cluster, 42) == "ok"
    world.until(lambda: world.condition("Scoring") == ("False", "ScoresNotWritten"), 20)
    expected_message = 'cannot patch resource "addonplacementscores/status"'
    assert f"1 of 1 scores cannot be written; {cluster}: " in world.condition_details("Scoring")[2]
    assert expected_message in world.condition_details("Scoring")[2]
    world.until(lambda: has_logged(hub.log, "score not written", expected_message))
    world.until(lambda: world.events("ScoresNotWritten"), 5)
    world.plane.set_rules(world.namespace, "hub", list(HUB.values()))
    world.until(lambda: world.score(cluster) == [42], 20)
    world.until(lambda: world.condition("Scoring") == ("True", "CyclesSucceed"), 5)
