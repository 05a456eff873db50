"""Hub processes that lose their API server, compete, or lose a cluster; and many clusters at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dsf.api.types import MANIFESTWORK_NAME
from dsf.kube.resources import LEASES, MANAGED_CLUSTERS, MANIFEST_WORKS
from dsf.up.httpcheck import make_http_check
from tests.integration.hub.kube.hubworld import HubWorld, has_logged
from tests.support.child import stopped
from tests.support.httpserver import ScriptedServer
from tests.support.redisserver import free_port


def test_standby_hub_takes_over_the_lease(world: HubWorld, api: ScriptedServer) -> None:
    [first] = world.setup(api.url, "one")
    leader = world.hub()
    world.until(lambda: world.delivered_scorers(first) == ["cpu-scorer"], 20)
    standby = world.hub()
    holder = world.holder()
    world.until(lambda: has_logged(standby.log, "waits for its turn"), 20)
    assert standby.is_running
    assert world.holder() == holder

    with stopped(standby):
        leader.signal(signal.SIGTERM)
        assert leader.wait(60) == 0
        assert world.holder() == "", "it hands the lease back"
    world.until(lambda: world.holder() not in ("", holder), 5)
    second = world.plane.cluster()
    world.until(lambda: world.delivered_scorers(second) == ["cpu-scorer"], 5)

    # A leader that loses its lease to another holder ends at once.
    lease = LEASES.path(world.namespace, "dynamic-scoring-hub")
    world.session.merge(lease, {"spec": {"holderIdentity": "thief"}})
    assert standby.wait(60) == 1
    assert world.holder() == "thief"


def test_standby_with_all_services_takes_over_from_a_killed_process(world: HubWorld, api: ScriptedServer) -> None:
    [first] = world.setup(api.url, "one")
    leader = world.hub(target="all", web_auth="open", listen_host="::", listen_port=free_port())
    world.until(lambda: world.delivered_scorers(first) == ["cpu-scorer"], 20)
    port = free_port()
    standby = world.hub(target="all", web_auth="open", listen_host="::", listen_port=port)
    # Results and page work in each process.
    world.until(lambda: has_logged(standby.log, " ready."), 60)
    world.until(make_http_check(f"http://127.0.0.1:{port}/healthz"), 20)
    assert has_logged(standby.log, "another beat is active")
    holder = world.holder()
    leader.kill()
    world.until(lambda: world.holder() not in ("", holder), 60)
    world.until(lambda: has_logged(standby.log, "beat is active"), 60)
    second = world.plane.cluster()
    world.until(lambda: world.delivered_scorers(second) == ["cpu-scorer"], 30)


def test_unwritable_cluster_does_not_delay_other_clusters(world: HubWorld, api: ScriptedServer) -> None:
    world.setup(api.url)
    hub = world.hub()
    world.until(lambda: world.status().get("healthStatus") == "Active", 20)
    for number in range(10):
        body = {
            "apiVersion": MANAGED_CLUSTERS.api_version,
            "kind": MANAGED_CLUSTERS.kind,
            "metadata": {"name": f"nowhere-{number}"},
            "spec": {"hubAcceptsClient": True},
        }
        world.session.create(MANAGED_CLUSTERS.path(), body)
    world.until(lambda: has_logged(hub.log, "reconciliation failed", 'namespaces "nowhere-9" not found'), 5)
    writable_cluster = world.plane.cluster()
    world.until(lambda: world.delivered_scorers(writable_cluster) == ["cpu-scorer"], 3)
    world.until(lambda: world.condition("Distributed") == ("False", "Distributing"), 3)
    # The text is that of the first one, so that the status is written once.
    world.until(lambda: "nowhere-0: PATCH " in world.condition_details("Distributed")[2], 3)
    assert 'namespaces "nowhere-0" not found' in world.condition_details("Distributed")[2]


def test_many_new_clusters_are_served_despite_a_killed_api_server(world: HubWorld, api: ScriptedServer) -> None:
    world.setup(api.url)
    hub = world.hub()
    world.until(lambda: world.status().get("healthStatus") == "Active", 20)

    def delivery_counts() -> dict[str, int]:
        """Return the number of clusters by the number of their delivered scorers."""
        numbers: dict[str, int] = {}
        for work in _works(world):
            summaries = work["spec"]["workload"]["manifests"][0]["data"]["summaries"]
            numbers[work["metadata"]["namespace"]] = summaries.count('"scoringEndpoint"')
        return numbers

    def until(condition: Callable[[], bool], timeout: float) -> None:
        """Wait while the hub runs. A hub that could not renew its lease in time ends, and is started again."""

        def holds() -> bool:
            nonlocal hub
            if not hub.is_running:
                assert "lost the lease" in hub.log.read_text(), hub.tail()
                hub = world.hub()
            return condition()

        # A list of all clusters is work for the API server, too.
        world.until(holds, timeout, interval=0.3)

    with ThreadPoolExecutor(8) as pool:
        clusters = list(pool.map(lambda _: world.plane.cluster("many"), range(40)))
    world.until(lambda: delivery_counts() == dict.fromkeys(clusters, 1), 60)
    world.until(lambda: len(world.pairs()) == 40, 20)

    # Scores are being written and masks have just changed, and the API server dies in the middle of it.
    world.results()
    masked, scored = clusters[:20], {cluster: [number] for number, cluster in enumerate(clusters[20:])}
    world.mask(*((cluster, "cpu") for cluster in masked))
    for cluster, [value] in scored.items():
        assert world.send(cluster, value) == "ok"
    world.until(lambda: 0 in delivery_counts().values() and world.scores(), 20)
    world.plane.kill_apiserver()
    world.plane.start_apiserver()
    until(lambda: delivery_counts() == dict.fromkeys(masked, 0) | dict.fromkeys(scored, 1), 60)
    until(lambda: len(world.pairs()) == 20, 10)
    until(lambda: world.scores() == scored, 30)
    until(lambda: world.status()["clusters"]["desired"] == 20, 10)
    assert "Traceback" not in hub.log.read_text()
    # Later changes are delivered at once again.
    world.mask()
    until(lambda: delivery_counts() == dict.fromkeys(clusters, 1), 60)
    late = world.plane.cluster()
    until(lambda: world.delivered_scorers(late) == ["cpu-scorer"], 10)
    until(lambda: len(world.pairs()) == 41, 30)
    world.session.delete(world.config_path)
    until(lambda: world.config() is None, 30)
    # The hub tidies up when it learns of it.
    until(lambda: _works(world) == [], 60)


def _works(world: HubWorld) -> list[dict[str, Any]]:
    return [item for item in world.items(MANIFEST_WORKS) if item["metadata"]["name"] == MANIFESTWORK_NAME]
