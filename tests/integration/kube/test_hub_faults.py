"""Hub processes that lose their API server, their rights, their rivals; and many clusters at once."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from dsf.api.types import GROUP, MANIFESTWORK_NAME
from dsf.kube.resources import LEASES, MANAGED_CLUSTERS, MANIFEST_WORKS
from dsf.settings import Settings
from tests.integration.kube.hubworld import HubWorld
from tests.integration.kube.manifests import config
from tests.support.controlplane_fixtures import found
from tests.support.httpserver import ScriptedServer


def _rule(group: str, resources: str, verbs: str) -> dict[str, list[str]]:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}


_RULES = {
    "ours": _rule(
        GROUP,
        "dynamicscorers dynamicscorers/status dynamicscoringconfigs dynamicscoringconfigs/status",
        "get list watch patch",
    ),
    "clusters": _rule("cluster.open-cluster-management.io", "managedclusters", "get list watch"),
    "scores": _rule(
        "cluster.open-cluster-management.io",
        "addonplacementscores addonplacementscores/status",
        "get list watch create patch delete",
    ),
    "works": _rule("work.open-cluster-management.io", "manifestworks", "get list watch create patch delete"),
    "events": _rule("events.k8s.io", "events", "create patch"),
    "leases": _rule("coordination.k8s.io", "leases", "get create update"),
}


def _said(log: Path, *words: str) -> bool:
    return any(all(word in line for word in words) for line in log.read_text().splitlines())


def test_a_second_hub_waits_and_takes_over(world: HubWorld, scorer_api: ScriptedServer) -> None:
    [first] = world.setup(scorer_api.url, "one")
    leader = world.hub()
    world.until(lambda: world.told(first) == ["cpu-scorer"], 20)
    standby = world.hub()
    holder = world.holder()
    world.until(lambda: _said(standby.log, "waits for its turn"), 20)
    assert standby.is_running
    assert world.holder() == holder

    began = time.monotonic()
    leader.signal(signal.SIGTERM)
    world.until(lambda: world.holder() not in ("", holder), 5)
    second = world.plane.cluster()
    world.until(lambda: world.told(second) == ["cpu-scorer"], 5)
    after_term = time.monotonic() - began
    assert after_term < 3
    assert leader.wait(5) == 0

    third = world.hub()
    world.until(lambda: _said(third.log, "waits for its turn"), 20)
    began = time.monotonic()
    holder = world.holder()
    standby.kill()
    world.until(lambda: world.holder() not in ("", holder), 25)
    fourth = world.plane.cluster()
    world.until(lambda: world.told(fourth) == ["cpu-scorer"], 25)
    after_kill = time.monotonic() - began
    assert 10 < after_kill < 20
    print(f"works again after SIGTERM: {after_term:.2f} s, after kill -9: {after_kill:.1f} s")

    # Another one has the lease against its will: it ends at once.
    lease = LEASES.path(world.namespace, "dynamic-scoring-hub")
    world.session.merge(lease, {"spec": {"holderIdentity": "thief"}})
    assert third.wait(5) == 1
    assert world.holder() == "thief"


def test_a_missing_right_is_named_and_its_grant_is_noticed(world: HubWorld, scorer_api: ScriptedServer) -> None:
    [cluster] = world.setup(scorer_api.url, "one")
    plane, missing = world.plane, {name: rule for name, rule in _RULES.items() if name != "scores"}
    limited = plane.service_account(world.namespace, "hub", list(missing.values()))
    hub = world.hub(kubeconfig=limited)
    world.until(lambda: _said(hub.log, 'cannot list resource "addonplacementscores"', "RBAC rule"), 20)
    # It still waits for its first list, and ends all the same.
    began = time.monotonic()
    hub.signal(signal.SIGTERM)
    assert hub.wait(5) == 0
    assert time.monotonic() - began < 3

    works = {**_RULES["works"], "verbs": ["get", "list", "watch"]}
    plane.set_rules(world.namespace, "hub", [*missing.values(), works])
    hub = world.hub(kubeconfig=limited)
    world.until(lambda: _said(hub.log, "cannot watch", 'cannot list resource "addonplacementscores"'), 20)
    plane.set_rules(world.namespace, "hub", [*missing.values(), _RULES["scores"]])
    world.until(lambda: world.status().get("healthStatus") == "Active", 15)
    assert world.told(cluster) == ["cpu-scorer"]


def test_a_cluster_that_cannot_be_written_delays_no_other(world: HubWorld, scorer_api: ScriptedServer) -> None:
    world.setup(scorer_api.url)
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
    world.until(lambda: _said(hub.log, "reconciliation failed", 'namespaces "nowhere-9" not found'), 5)
    began = time.monotonic()
    good = world.plane.cluster()
    world.until(lambda: world.told(good) == ["cpu-scorer"], 3)
    assert time.monotonic() - began < 1.5
    world.until(lambda: world.condition("Distributed") == ("False", "Distributing"), 3)


@pytest.fixture
def own_world(
    redis_client: redis.Redis, redis_url: str, tmp_path: Path, settings_factory: Callable[..., Settings]
) -> Iterator[HubWorld]:
    """A world on an API server of its own, to kill."""
    with found() as plane, contextlib.closing(HubWorld(plane, redis_client, redis_url, tmp_path)) as made:
        yield made


def test_two_hundred_clusters_at_once_and_an_api_server_that_dies_meanwhile(
    own_world: HubWorld, scorer_api: ScriptedServer
) -> None:
    world = own_world
    world.setup(scorer_api.url)
    hub = world.hub()
    world.until(lambda: world.status().get("healthStatus") == "Active", 20)

    def told() -> dict[str, int]:
        """How many clusters are told of how many scorers."""
        numbers: dict[str, int] = {}
        for work in _works(world):
            summaries = work["spec"]["workload"]["manifests"][0]["data"]["summaries"]
            numbers[work["metadata"]["namespace"]] = summaries.count('"scoringEndpoint"')
        return numbers

    with ThreadPoolExecutor(8) as pool:
        clusters = list(pool.map(lambda _: world.plane.cluster("many"), range(200)))
    created = time.monotonic()
    world.until(lambda: told() == dict.fromkeys(clusters, 1), 60)
    distributed = time.monotonic() - created
    world.until(lambda: len(world.pairs()) == 200, 20)

    # The masks change, and the API server dies in the middle of it.
    world.mask(("*", "cpu"))
    world.until(lambda: 0 in told().values(), 10)
    world.plane.kill_apiserver()
    world.plane.start_apiserver()
    began = time.monotonic()
    world.until(lambda: told() == dict.fromkeys(clusters, 0), 60)
    world.until(lambda: world.pairs() == [], 10)
    world.until(lambda: world.condition("Distributed") == ("False", "Masked"), 10)
    healed = time.monotonic() - began
    assert hub.is_running
    assert "Traceback" not in hub.log.read_text()
    # What changes from here on is heard of at once again.
    world.mask()
    late = world.plane.cluster()
    world.until(lambda: world.told(late) == ["cpu-scorer"], 10)
    world.until(lambda: len(world.pairs()) == 201, 30)
    world.session.delete(world.config_path)
    world.until(lambda: world.config() is None, 30)
    assert _works(world) == []
    world.apply(config(world.namespace))
    print(f"200 clusters distributed {distributed:.1f} s after the last was made, healed after {healed:.1f} s")


def _works(world: HubWorld) -> list[dict[str, Any]]:
    items = world.session.get(MANIFEST_WORKS.path())["items"]
    return [item for item in items if item["metadata"]["name"] == MANIFESTWORK_NAME]
