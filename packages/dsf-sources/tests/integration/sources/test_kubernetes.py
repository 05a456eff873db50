"""The source Kubernetes against a real API server, with real Node and Pod objects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsf.errors import HttpError
from dsf.owncluster.background import OwnCluster
from dsf.settings import Settings
from dsf.sources.memory import SourceMemory
from tests.support.apirelay import ApiServerRelay
from tests.support.clusterobjects import NODES, PODS, RULES, add_node, add_pod, end_pod
from tests.support.controlplane import ControlPlane
from tests.support.sourcefetch import ask, memory, summary
from tests.support.wait import wait_for

GIB = 2**30
SCORER = summary("Kubernetes")


class Cluster:
    """An API server, an agent's account, and the agent's source memory."""

    def __init__(self, plane: ControlPlane, rules: list[dict[str, object]]) -> None:
        self.plane = plane
        self.admin = plane.session()
        self.namespace = plane.namespace("pods")
        self.relay = ApiServerRelay(plane, plane.service_account(self.namespace, "agent", rules)).__enter__()
        self.admin.create(f"/api/v1/namespaces/{self.namespace}/serviceaccounts", {"metadata": {"name": "default"}})
        self.memory: SourceMemory = memory(SCORER)
        self.memory.settings = Settings(agent_kube=True, kubeconfig=self.relay.kubeconfig)
        running = self.memory.start_once(OwnCluster)
        assert isinstance(running, OwnCluster)
        self.view = running.cluster

    def values(self, **options: object) -> dict[tuple[str, str], float]:
        """Return the newest value by resource and node; the cluster's own are under no node."""
        return {
            (series["metric"]["resource"], series["metric"].get("node", "")): float(series["values"][-1][1])
            for series in ask(SCORER, self.memory, **options)  # type: ignore[arg-type]
        }

    def close(self) -> None:
        """End watches and connections."""
        self.memory.stop()
        self.relay.__exit__()


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[Cluster]:
    new_cluster = Cluster(control_plane, RULES)
    add_node(new_cluster.admin, "n1", cpu="4", memory="8Gi", **{"nvidia.com/gpu": "2"})
    add_node(new_cluster.admin, "n2", cpu="8", memory="16Gi")
    add_node(new_cluster.admin, "cordoned", cordoned=True, cpu="64", memory="64Gi")
    yield new_cluster
    for pod in new_cluster.admin.get(PODS.path(new_cluster.namespace))["items"]:
        # No kubelet confirms the end of the pods.
        new_cluster.admin.request(
            "DELETE", PODS.path(new_cluster.namespace, pod["metadata"]["name"]), query={"gracePeriodSeconds": "0"}
        )
    for name in ("n1", "n2", "cordoned"):
        new_cluster.admin.delete(NODES.path(name=name))
    new_cluster.close()


def test_available_resources_follow_the_pods(cluster: Cluster) -> None:
    assert cluster.values() == {
        ("cpu", ""): 12,
        ("memory", ""): 24 * GIB,
        ("nvidia.com/gpu", ""): 2,
        ("google.com/tpu", ""): 0,
        ("cpu", "n1"): 4,
        ("memory", "n1"): 8 * GIB,
        ("nvidia.com/gpu", "n1"): 2,
        ("google.com/tpu", "n1"): 0,
        ("cpu", "n2"): 8,
        ("memory", "n2"): 16 * GIB,
        ("nvidia.com/gpu", "n2"): 0,
        ("google.com/tpu", "n2"): 0,
    }
    add_pod(cluster.admin, cluster.namespace, "web", "n1", cpu="500m", memory="1Gi")
    wait_for(lambda: cluster.values()["cpu", "n1"] == 3.5, 10, "the pod is counted")
    assert cluster.values()["memory", ""] == 23 * GIB
    # A pod without a node uses no resources; a pod on a cordoned node does not count.
    add_pod(cluster.admin, cluster.namespace, "waiting", cpu="1")
    add_pod(cluster.admin, cluster.namespace, "elsewhere", "cordoned", cpu="1")
    # Init containers and a sidecar: max(1 + 0.5, 2 + 0.5) = 2.5.
    requests = {name: {"requests": {"cpu": cpu}} for name, cpu in (("side", "500m"), ("prepare", "2"))}
    start = [
        {"name": "side", "image": "none", "restartPolicy": "Always", "resources": requests["side"]},
        {"name": "prepare", "image": "none", "resources": requests["prepare"]},
    ]
    add_pod(cluster.admin, cluster.namespace, "batch", "n2", cpu="1", initContainers=start)
    wait_for(lambda: cluster.values()["cpu", "n2"] == 5.5, 10, "init containers are counted by the rule")
    assert cluster.values()["cpu", ""] == 9
    end_pod(cluster.admin, cluster.namespace, "web")
    wait_for(lambda: cluster.values()["cpu", "n1"] == 4, 10, "a pod that has ended takes nothing")
    cluster.admin.merge(NODES.path(name="n2"), {"spec": {"unschedulable": True}})
    wait_for(lambda: ("cpu", "n2") not in cluster.values(), 10, "a cordoned node takes no pods")
    assert cluster.values()["cpu", ""] == 4


def test_query_selects_series_and_cycles_fill_the_range(cluster: Cluster) -> None:
    query = 'kubernetes_available{resource="memory",node=""}'
    scorer = summary("Kubernetes", query, source_range=60, source_step=30)
    ask(scorer, cluster.memory, now=1000)
    matrix = ask(scorer, cluster.memory, now=1030)
    assert matrix == [
        {
            "metric": {"__name__": "kubernetes_available", "resource": "memory"},
            "values": [[1000, str(24 * GIB)], [1030, str(24 * GIB)]],
        }
    ]


def test_missing_role_is_named_by_the_cycle(control_plane: ControlPlane) -> None:
    cluster = Cluster(control_plane, [])
    with pytest.raises(HttpError) as caught:
        cluster.values()
    assert caught.value.reason == "unauthorized"
    assert "ClusterRole with get, list and watch of nodes and pods" in str(caught.value)
    assert "nodes is forbidden" in str(caught.value) or "pods is forbidden" in str(caught.value)
    # Granted now, the next cycles work.
    control_plane.set_rules(cluster.namespace, "agent", RULES)

    def works() -> bool:
        try:
            return ("cpu", "") in cluster.values()
        except HttpError:
            return False

    wait_for(works, 15, "the granted right works")
    cluster.close()


def test_watch_runs_only_while_a_scorer_needs_it(cluster: Cluster) -> None:
    assert not cluster.view.is_watching
    cluster.values()
    assert cluster.view.is_watching
    cluster.memory.tidy()
    assert cluster.view.is_watching
    # The last scorer was removed.
    summaries, cluster.memory.summaries = cluster.memory.summaries, dict
    cluster.memory.tidy()
    assert not cluster.view.is_watching
    cluster.memory.summaries = summaries
    assert cluster.values()["cpu", ""] == 12


def test_stale_copy_is_not_used_while_the_server_is_away(control_plane: ControlPlane) -> None:
    cluster = Cluster(control_plane, RULES)
    with cluster.relay.stalled(), pytest.raises(HttpError) as caught:
        cluster.values(seconds=1)
    assert (caught.value.reason, caught.value.retryable) == ("timeout", True)

    def back() -> dict[tuple[str, str], float]:
        try:
            return cluster.values()
        except HttpError:
            return {}

    assert wait_for(back, 20)["cpu", ""] == 0
    cluster.relay.cut()

    def refusal() -> HttpError | None:
        try:
            cluster.values()
        except HttpError as error:
            return error
        return None

    error = wait_for(refusal, 20, "the cycle fails")
    assert (error.reason, error.retryable) == ("connection_failed", True)
    cluster.close()


def test_kubernetes_source_is_refused_outside_of_kubernetes() -> None:
    with pytest.raises(HttpError) as caught:
        ask(SCORER, memory(SCORER))
    assert caught.value.reason == "unsupported_source"
    assert "DSF_AGENT_KUBE" in str(caught.value)
